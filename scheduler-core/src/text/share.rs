//! The requests of a pod's containers to cards are in the line of the pod. Each key ends in the name
//! of its container: `gpu-memory.main=2000 devices.main=2`.

use super::field::{Field, Name, Object, Whole, fields, key, or};
use super::line::{Line, Read, Word};
use crate::model::{Amount, Ask, ContainerAsk, Share};

const GPUS: &str = "gpus";

/// An amount is written as `name-memory=` in MiB, or as `name-fraction=`.
pub(super) struct AmountOf(pub(super) &'static str);

impl Field<Option<Amount>> for AmountOf {
    fn read(&self, line: &Line) -> Read<Option<Amount>> {
        let memory = line.value(&format!("{}-memory", self.0))?;
        let fraction = line.value(&format!("{}-fraction", self.0))?;
        Ok(memory
            .map(Amount::Memory)
            .or(fraction.map(Amount::Fraction)))
    }

    fn write(&self, amount: &Option<Amount>, line: &mut Line) {
        match amount {
            Some(Amount::Memory(mib)) => line.push_pair(format!("{}-memory", self.0), mib.0),
            Some(Amount::Fraction(part)) => line.push_pair(format!("{}-fraction", self.0), part.0),
            None => {}
        }
    }
}

impl Field<Amount> for AmountOf {
    fn read(&self, line: &Line) -> Read<Amount> {
        let amount: Option<Amount> = self.read(line)?;
        amount.ok_or_else(|| line.error("the amount of a share is missing"))
    }

    fn write(&self, amount: &Amount, line: &mut Line) {
        self.write(&Some(*amount), line);
    }
}

fields!(ContainerAsk {
    container: Name,
    ask: Whole,
    init: key("init"),
});

impl Object for Ask {
    fn read(line: &Line) -> Read<Self> {
        match line.value(GPUS)? {
            Some(count) => Ok(Self::Whole(count)),
            None => Share::read(line).map(Self::Share),
        }
    }

    fn write(&self, line: &mut Line) {
        match self {
            Self::Whole(count) => line.push_pair(GPUS, count),
            Self::Share(share) => share.write(line),
        }
    }
}

fields!(Share {
    amount: AmountOf("gpu"),
    burst: AmountOf("burst"),
    devices: or("devices", 1),
    compute: key("compute"),
    mode: key("mode"),
});

/// The requests have the order in which the containers appear.
pub(super) struct Asks;

impl Field<Vec<ContainerAsk>> for Asks {
    fn read(&self, line: &Line) -> Read<Vec<ContainerAsk>> {
        let mut containers = Vec::new();
        for word in &line.words {
            if let Some((kind, container)) = word.key.split_once('.')
                && [GPUS, "gpu-memory", "gpu-fraction"].contains(&kind)
                && !containers.contains(&container)
            {
                containers.push(container);
            }
        }
        let parts = containers.into_iter().map(|name| line.part(name));
        parts.map(|part| ContainerAsk::read(&part)).collect()
    }

    fn write(&self, asks: &Vec<ContainerAsk>, line: &mut Line) {
        for ask in asks {
            let mut part = Line::default();
            ask.write(&mut part);
            for Word { key, value, .. } in part.words {
                if let Some(value) = value {
                    line.push_pair(format!("{key}.{}", ask.container), value);
                }
            }
        }
    }
}
