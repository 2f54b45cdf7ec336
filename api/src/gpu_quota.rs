//! What a queue gets of single GPU products: the annotation
//! [`QUOTA_BY_PRODUCT`] of a `Queue` → one row for each product, or what is wrong with it.
//!
//! KAI's CRD has no field for it and prunes fields that it does not know, so it is an annotation:
//! KAI installed beside or after Aliquot keeps the object as it is.

use proto::names::queue::QUOTA_BY_PRODUCT;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Products that one queue may name.
pub const MOST: usize = 64;

/// What a queue and the queues below it get of one product.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductQuota {
    /// As the node label `nvidia.com/gpu.product` spells it.
    pub product: String,
    /// In which unit.
    pub bounds: ProductBounds,
}

/// The bounds of one product. -1 is unlimited. A quota of `None` says nothing of it; a limit of
/// `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ProductBounds {
    /// Fields `quota` and `limit`: GPUs, fractions allowed.
    Gpus {
        /// Guaranteed.
        quota: Option<f64>,
        /// Never more than.
        limit: Option<f64>,
    },
    /// Fields `quotaMib` and `limitMib`: MiB of GPU memory.
    Memory {
        /// Guaranteed.
        quota: Option<i64>,
        /// Never more than.
        limit: Option<i64>,
    },
}

/// Why a row, or the whole annotation, is not used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuotaError {
    /// The whole annotation.
    #[error(
        "annotation {QUOTA_BY_PRODUCT} is no JSON object such as {{\"NVIDIA-L4\": {{\"quota\": 2, \"limit\": 4}}}}: {0}"
    )]
    Json(String),
    /// The whole annotation.
    #[error("annotation {QUOTA_BY_PRODUCT} names {0} products, and at most {MOST} are read")]
    TooMany(usize),
    /// The row.
    #[error(
        "annotation {QUOTA_BY_PRODUCT}: {0:?} is no product, which is the exact value of the node label nvidia.com/gpu.product"
    )]
    Product(String),
    /// The row.
    #[error("annotation {QUOTA_BY_PRODUCT}, {product}: {what}")]
    Row {
        /// Whose row.
        product: String,
        /// What is wrong with it.
        what: String,
    },
    /// The row.
    #[error(
        "annotation {QUOTA_BY_PRODUCT}, {product}: {field} is {amount}, and must be 0 or more, or -1 for unlimited"
    )]
    Amount {
        /// Whose row.
        product: String,
        /// Such as `quota`.
        field: &'static str,
        /// Its value.
        amount: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Row {
    quota: Option<f64>,
    limit: Option<f64>,
    quota_mib: Option<i64>,
    limit_mib: Option<i64>,
}

/// Reads the annotation: rows that can be used, in order of product, and what is wrong with the
/// others. Called by admission, which refuses the queue, and by the scheduler, which goes on
/// without these rows.
pub fn read(annotation: &str) -> (Vec<ProductQuota>, Vec<QuotaError>) {
    let rows: Map<String, Value> = match serde_json::from_str(annotation) {
        Ok(rows) => rows,
        Err(error) => return (Vec::new(), vec![QuotaError::Json(error.to_string())]),
    };
    if rows.len() > MOST {
        return (Vec::new(), vec![QuotaError::TooMany(rows.len())]);
    }
    let (mut read, mut wrong) = (Vec::new(), Vec::new());
    for (product, value) in rows {
        match row(product, value) {
            Ok(row) => read.push(row),
            Err(error) => wrong.push(error),
        }
    }
    read.sort_by(|one, other| one.product.cmp(&other.product));
    (read, wrong)
}

fn row(product: String, value: Value) -> Result<ProductQuota, QuotaError> {
    if !is_label_value(&product) {
        return Err(QuotaError::Product(product));
    }
    let read: Row = match serde_json::from_value(value) {
        Ok(row) => row,
        Err(error) => {
            let what = error.to_string();
            return Err(QuotaError::Row { product, what });
        }
    };
    let is_bad = |amount: &f64| *amount < 0.0 && amount.total_cmp(&-1.0).is_ne();
    let gpus = |amount: Option<f64>| amount.filter(is_bad).map(|amount| amount.to_string());
    let mib = |amount: Option<i64>| amount.filter(|mib| *mib < -1).map(|mib| mib.to_string());
    let bad = [
        ("quota", gpus(read.quota)),
        ("limit", gpus(read.limit)),
        ("quotaMib", mib(read.quota_mib)),
        ("limitMib", mib(read.limit_mib)),
    ];
    for (field, bad) in bad {
        if let Some(amount) = bad {
            return Err(QuotaError::Amount {
                product,
                field,
                amount,
            });
        }
    }
    let in_gpus = read.quota.is_some() || read.limit.is_some();
    let in_memory = read.quota_mib.is_some() || read.limit_mib.is_some();
    let bounds = match (in_gpus, in_memory) {
        (true, false) => ProductBounds::Gpus {
            quota: read.quota,
            limit: read.limit,
        },
        (false, true) => ProductBounds::Memory {
            quota: read.quota_mib,
            limit: read.limit_mib,
        },
        (false, false) => {
            let what = "it has neither a quota nor a limit".to_owned();
            return Err(QuotaError::Row { product, what });
        }
        (true, true) => {
            let what = "it has bounds in GPUs and in MiB, and a product is counted in one of them";
            let what = what.to_owned();
            return Err(QuotaError::Row { product, what });
        }
    };
    Ok(ProductQuota { product, bounds })
}

/// Kubernetes' rule, and not empty.
fn is_label_value(text: &str) -> bool {
    let is_end = |next: Option<char>| next.is_some_and(|next| next.is_ascii_alphanumeric());
    text.len() <= 63
        && is_end(text.chars().next())
        && is_end(text.chars().next_back())
        && (text.chars()).all(|next| next.is_ascii_alphanumeric() || "-_.".contains(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_order_of_product() {
        let text = r#"{"NVIDIA-L4": {"limit": 0.5}, "NVIDIA-A100-SXM4-40GB": {"quota": 2, "limit": -1},
            "NVIDIA-H200": {"quotaMib": 143771, "limitMib": -1}}"#;
        let row = |product: &str, bounds| ProductQuota {
            product: product.to_owned(),
            bounds,
        };
        let gpus = |quota, limit| ProductBounds::Gpus { quota, limit };
        let (quota, limit) = (Some(143_771), Some(-1));
        let rows = vec![
            row("NVIDIA-A100-SXM4-40GB", gpus(Some(2.0), Some(-1.0))),
            row("NVIDIA-H200", ProductBounds::Memory { quota, limit }),
            row("NVIDIA-L4", gpus(None, Some(0.5))),
        ];
        assert_eq!(read(text), (rows, Vec::new()));
        assert_eq!(read("{}"), (Vec::new(), Vec::new()));
    }

    #[test]
    fn each_wrong_row_is_named_and_the_others_are_read() {
        let wrong = |row: &str| {
            let (read, wrong) = read(&format!(r#"{{"GOOD": {{"quota": 1}}, {row}}}"#));
            assert_eq!(read.len(), 1, "{row}");
            let [wrong] = wrong.as_slice() else {
                panic!("{row}: {wrong:?}");
            };
            let text = wrong.to_string();
            text.replace("annotation aliquot.dev/gpu-quota-by-product", "it")
        };
        for (row, said) in [
            (
                r#""L4": {"quota": -3}"#,
                "it, L4: quota is -3, and must be 0 or more, or -1 for unlimited",
            ),
            (
                r#""L4": {"quota": 1, "limit": -0.5}"#,
                "it, L4: limit is -0.5, and must be 0 or more, or -1 for unlimited",
            ),
            (r#""L4": {}"#, "it, L4: it has neither a quota nor a limit"),
            (
                r#""L4": {"quota": 1, "limitMib": 23034}"#,
                "it, L4: it has bounds in GPUs and in MiB, and a product is counted in one of them",
            ),
            (
                r#""L4": {"limitMib": -2}"#,
                "it, L4: limitMib is -2, and must be 0 or more, or -1 for unlimited",
            ),
            (
                r#""L4": {"quotaMib": 0.5}"#,
                "it, L4: invalid type: floating point `0.5`, expected i64",
            ),
            (
                r#""L4": {"deserved": 1}"#,
                "it, L4: unknown field `deserved`, expected one of `quota`, `limit`, `quotaMib`, `limitMib`",
            ),
            (
                r#""L4": 4"#,
                "it, L4: invalid type: integer `4`, expected struct Row",
            ),
            (
                r#""*": {"quota": 1}"#,
                "it: \"*\" is no product, which is the exact value of the node label nvidia.com/gpu.product",
            ),
            (
                r#""NVIDIA L4": {"quota": 1}"#,
                "it: \"NVIDIA L4\" is no product, which is the exact value of the node label nvidia.com/gpu.product",
            ),
        ] {
            assert_eq!(wrong(row), said);
        }
    }

    #[test]
    fn what_is_no_object_or_too_long_is_not_read_at_all() {
        let many: Vec<String> = (0..=MOST)
            .map(|at| format!(r#""p{at}": {{"quota": 1}}"#))
            .collect();
        let many = format!("{{{}}}", many.join(","));
        for text in ["", "4", "[]", "{\"L4\": ", "NVIDIA-L4: {quota: 1}", &many] {
            let (rows, wrong) = read(text);
            assert!(rows.is_empty() && wrong.len() == 1, "{text}: {wrong:?}");
        }
    }
}
