//! As OpenCost's custom costs: one `CustomCostResponse` of `protos/customcost/messages.proto`, in
//! protobuf's JSON. A cost is a row's GPU-hours of one product, and what no pod was granted.

use super::prices::Prices;
use super::uses::{Key, Uses};
use scheduler::page::ReportBy;
use serde_json::{Value, json};

const DOMAIN: &str = "aliquot.dev";

pub(super) fn costs(uses: &Uses, by: ReportBy, prices: Option<&Prices>) -> Value {
    let mut costs = Vec::new();
    let id = |key: &Key, product: &str| {
        let key = [&key.queue, &key.namespace, &key.owner].map(String::as_str);
        format!(
            "{DOMAIN}/{}/{}/{}/{product}",
            uses.from,
            uses.until,
            key.join("/")
        )
    };
    for (key, products) in &uses.rows {
        let name = match by {
            ReportBy::Queue => &key.queue,
            ReportBy::Namespace => &key.namespace,
            ReportBy::Owner => &key.owner,
        };
        for (product, of) in products {
            let price = prices.map_or(0.0, |prices| prices.of(product));
            let mut labels = json!({"product": product});
            for (label, value) in [
                ("queue", &key.queue),
                ("namespace", &key.namespace),
                ("workload", &key.owner),
            ] {
                if !value.is_empty() {
                    labels[label] = json!(value);
                }
            }
            if let Some(unused) = of.gpu_unused {
                labels["unusedGpuHours"] = json!(format!("{unused:.3}"));
            }
            costs.push(json!({
                "id": id(key, product), "providerId": name, "resourceName": name,
                "resourceType": "GPU share", "accountName": name, "chargeCategory": "Usage",
                "description": match by {
                    ReportBy::Owner => format!("GPU shares of {name}"),
                    _ => format!("GPU shares of {} {name}", by.as_str()),
                },
                "billedCost": of.gpu * price, "listCost": of.gpu * price, "listUnitPrice": price,
                "usageQuantity": of.gpu, "usageUnit": "GPU-hours", "labels": labels,
            }));
        }
    }
    if let Some((_, free)) = uses.cards {
        let price = prices.map_or(0.0, |prices| prices.of(""));
        costs.push(json!({
            "id": id(&Key::default(), "idle"), "providerId": "idle", "resourceName": "idle",
            "resourceType": "GPU share", "accountName": "idle", "chargeCategory": "Usage",
            "description": "cards and parts of cards that no pod was granted",
            "billedCost": free * price, "listCost": free * price, "listUnitPrice": price,
            "usageQuantity": free, "usageUnit": "GPU-hours", "labels": {"idle": "true"},
        }));
    }
    let stamp = |millis: u64| {
        let at = jiff::Timestamp::from_millisecond(i64::try_from(millis).unwrap_or(0));
        at.map(|at| at.to_string()).unwrap_or_default()
    };
    json!({
        "metadata": {"apiClientVersion": env!("CARGO_PKG_VERSION")}, "costSource": "gpu-shares",
        "domain": DOMAIN, "version": "v1",
        "currency": prices.map_or("", |prices| prices.currency.as_str()),
        "start": stamp(uses.from), "end": stamp(uses.until), "errors": [], "costs": costs,
    })
}

#[cfg(test)]
mod tests {
    use super::super::uses::Use;
    use super::*;

    #[test]
    fn a_cost_has_what_opencost_sums_up_by() {
        let key = Key {
            queue: "research".into(),
            ..Key::default()
        };
        let of = Use {
            gpu: 10.0,
            gpu_unused: Some(2.5),
            ..Use::default()
        };
        let uses = Uses {
            rows: [(key, [("H100".to_owned(), of)].into())].into(),
            cards: Some((20.0, 4.0)),
            from: 1_767_225_600_000,
            until: 1_767_312_000_000,
            notes: Vec::new(),
        };
        let prices = Prices::parse("currency: EUR\ngpuHour: 1\nproducts: {H100: 4}").unwrap();
        let costs = costs(&uses, ReportBy::Queue, Some(&prices));
        assert_eq!(costs["currency"], "EUR");
        assert_eq!(costs["start"], "2026-01-01T00:00:00Z");
        let first = &costs["costs"][0];
        assert_eq!(
            (&first["billedCost"], &first["usageQuantity"]),
            (&json!(40.0), &json!(10.0))
        );
        assert_eq!(first["labels"]["unusedGpuHours"], "2.500");
        assert_eq!(costs["costs"][1]["billedCost"], 4.0);
        // Every field is one of OpenCost's.
        let fields = [
            "metadata",
            "zone",
            "accountName",
            "chargeCategory",
            "description",
            "resourceName",
            "resourceType",
            "id",
            "providerId",
            "billedCost",
            "listCost",
            "listUnitPrice",
            "usageQuantity",
            "usageUnit",
            "labels",
            "extendedAttributes",
        ];
        for field in first.as_object().unwrap().keys() {
            assert!(fields.contains(&field.as_str()), "{field}");
        }
    }
}
