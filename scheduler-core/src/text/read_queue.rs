//! A line → a queue.

use super::line::Line;
use super::read::{Read, parsed};
use crate::ids::QueueName;
use crate::model::{ProductQuota, ProductUnit, Queue, QueueResource, Weight};
use crate::units::{Bound, Duration, Time};
use std::sync::Arc;

fn bound(line: &Line, text: &str) -> Read<Bound> {
    if text == "-1" {
        return Ok(Bound::Unlimited);
    }
    Ok(Bound::Exactly(parsed(line, text)?))
}

/// `quota/limit/weight[/usage]`; -1 is unlimited, weight in millionths.
fn resource(line: &Line, key: &str) -> Read<Option<QueueResource>> {
    let Some(text) = line.get(key) else {
        return Ok(None);
    };
    let parts: Vec<&str> = text.split('/').collect();
    let (quota, limit, weight, usage) = match parts.as_slice() {
        [quota, limit, weight] => (quota, limit, weight, &"0"),
        [quota, limit, weight, usage] => (quota, limit, weight, usage),
        _ => return Err(line.error(format!("{key} wants quota/limit/weight"))),
    };
    Ok(Some(QueueResource {
        quota: bound(line, quota)?,
        limit: bound(line, limit)?,
        weight: Weight(parsed(line, weight)?),
        usage: parsed(line, usage)?,
    }))
}

/// `product.<product>=[quota]/limit`, or `product-mib.` for bounds in MiB; without a quota nothing
/// is said of it.
fn products(line: &Line) -> Read<Vec<ProductQuota>> {
    let row = |unit, (product, text): (&str, &str)| {
        let Some((quota, limit)) = text.split_once('/') else {
            return Err(line.error(format!("product {product} wants [quota]/limit")));
        };
        let quota = (!quota.is_empty()).then(|| bound(line, quota));
        Ok(ProductQuota {
            product: Arc::from(product),
            unit,
            quota: quota.transpose()?,
            limit: bound(line, limit)?,
        })
    };
    let gpus = line.prefixed("product");
    let gpus = gpus.map(|one| row(ProductUnit::Gpus, one));
    let memory = line.prefixed("product-mib");
    let memory = memory.map(|one| row(ProductUnit::Memory, one));
    let mut products: Vec<ProductQuota> = gpus.chain(memory).collect::<Read<_>>()?;
    products.sort_by(|one, other| one.product.cmp(&other.product));
    if let Some([one, ..]) = products
        .windows(2)
        .find(|pair| pair[0].product == pair[1].product)
    {
        return Err(line.error(format!("product.{} is there twice", one.product)));
    }
    Ok(products)
}

pub(super) fn queue(line: &Line) -> Read<Queue> {
    let mut queue = Queue::unlimited(line.name(1)?);
    queue.parent = line.get("parent").map(QueueName::new);
    queue.display_name = line.get("display").map(Arc::from);
    queue.priority = line.number("priority")?.unwrap_or(100);
    queue.created = Time(line.number("created")?.unwrap_or(0));
    queue.gpu = resource(line, "gpu")?.unwrap_or(queue.gpu);
    queue.cpu = resource(line, "cpu")?.unwrap_or(queue.cpu);
    queue.memory = resource(line, "memory")?.unwrap_or(queue.memory);
    queue.products = products(line)?;
    queue.bad_products = line.get("bad-products").map(Arc::from);
    queue.preempt_min_runtime = line.number("preempt-min-runtime")?.map(Duration);
    queue.reclaim_min_runtime = line.number("reclaim-min-runtime")?.map(Duration);
    Ok(queue)
}
