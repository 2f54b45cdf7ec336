//! The file of prices.
//!
//! ```yaml
//! currency: EUR
//! gpuHour: 2.50          # of every product that is not named
//! products:
//!   NVIDIA H100 80GB HBM3: 4.10
//! ```

use crate::failure::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// See the module.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Prices {
    pub(super) currency: String,
    /// Of a GPU-hour of a product that is not named.
    #[serde(default)]
    gpu_hour: f64,
    /// Of a GPU-hour, by the product's name as NVML has it.
    #[serde(default)]
    products: BTreeMap<String, f64>,
}

impl Prices {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = crate::shadow::read(path)?;
        Self::parse(&text).map_err(|why| Failure::input(format!("{}: {why}", path.display())))
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let prices: Self = serde_saphyr::from_str(text)
            .map_err(|error| format!("the prices are invalid: {error}"))?;
        let named = prices
            .products
            .iter()
            .map(|(name, price)| (name.as_str(), price));
        for (name, price) in named.chain([("gpuHour", &prices.gpu_hour)]) {
            if !price.is_finite() || *price < 0.0 {
                return Err(format!(
                    "the price of {name} is {price}: use a number of at least 0"
                ));
            }
        }
        Ok(prices)
    }

    /// Of a GPU-hour.
    pub(super) fn of(&self, product: &str) -> f64 {
        self.products.get(product).copied().unwrap_or(self.gpu_hour)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_in_the_docs_is_one() {
        let page = include_str!("../../../docs/status-page.md");
        let blocks = page.split("```yaml\n").skip(1);
        let mut blocks = blocks.filter_map(|block| block.split("```").next());
        let block = blocks.find(|block| block.contains("gpuHour")).unwrap();
        let prices = Prices::parse(block).unwrap();
        assert_eq!(prices.currency, "EUR");
        assert!(prices.of("NVIDIA H100 80GB HBM3") > prices.of("another"));
    }

    #[test]
    fn a_product_without_a_price_has_the_general_one_and_nonsense_is_refused() {
        let prices = Prices::parse("currency: USD\ngpuHour: 2\nproducts: {L4: 0.5}").unwrap();
        assert_eq!((prices.of("L4"), prices.of("H100")), (0.5, 2.0));
        for (text, word) in [
            ("gpuHour: 2", "currency"),
            ("currency: USD\ngpuHour: -1", "the price of gpuHour is -1"),
            ("currency: USD\nproducts: {L4: .nan}", "the price of L4"),
            ("currency: USD\nhour: 1", "hour"),
            ("[", "the prices are invalid"),
        ] {
            let error = Prices::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
