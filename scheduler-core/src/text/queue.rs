//! This file has the table of queues.

use super::field::{Field, Name, Object, fields, key, or};
use super::line::{Line, Read};
use super::value::Value;
use crate::model::{ProductQuota, ProductUnit, Queue};
use std::sync::Arc;

fields!(Queue, usual = Queue::unlimited(""), {
    name: Name,
    parent: key("parent"),
    display_name: key("display"),
    priority: or("priority", usual.priority),
    created: key("created"),
    gpu: or("gpu", usual.gpu),
    cpu: or("cpu", usual.cpu),
    memory: or("memory", usual.memory),
    products: Products,
    bad_products: key("bad-products"),
    preempt_min_runtime: key("preempt-min-runtime"),
    reclaim_min_runtime: key("reclaim-min-runtime"),
    idle_after: key("idle-after"),
    idle_exempt_from: key("idle-exempt-from"),
    bad_idle: key("bad-idle"),
});

/// Each product is written as `product.<product>=[quota]/limit`, or with `product-mib.` if the bounds
/// are in MiB. The quota is empty if the queue sets none.
struct Products;

impl Products {
    const KEYS: [(ProductUnit, &str); 2] = [
        (ProductUnit::Gpus, "product"),
        (ProductUnit::Memory, "product-mib"),
    ];
}

impl Field<Vec<ProductQuota>> for Products {
    fn read(&self, line: &Line) -> Read<Vec<ProductQuota>> {
        let mut products = Vec::new();
        for (unit, key) in Self::KEYS {
            for (product, text) in line.prefixed(key) {
                let Some((quota, limit)) = text.split_once('/') else {
                    return Err(line.error(format!("product {product} wants [quota]/limit")));
                };
                let quota = (!quota.is_empty()).then(|| line.parsed(product, quota));
                products.push(ProductQuota {
                    product: Arc::from(product),
                    unit,
                    quota: quota.transpose()?,
                    limit: line.parsed(product, limit)?,
                });
            }
        }
        products.sort_by(|one, other| one.product.cmp(&other.product));
        let mut pairs = products.windows(2);
        match pairs.find(|pair| pair[0].product == pair[1].product) {
            Some([one, ..]) => Err(line.error(format!("product.{} is there twice", one.product))),
            _ => Ok(products),
        }
    }

    fn write(&self, products: &Vec<ProductQuota>, line: &mut Line) {
        for row in products {
            let key = match row.unit {
                ProductUnit::Gpus => "product",
                ProductUnit::Memory => "product-mib",
            };
            let (quota, limit) = (row.quota.text(), row.limit.text());
            line.push_pair(format!("{key}.{}", row.product), format!("{quota}/{limit}"));
        }
    }
}
