//! The words of other products that share GPUs, and the words here that mean the same. The table of
//! `docs/migration.md` has the same rows.

use proto::names::{request, resource};

/// A word of another product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    /// The name of the product.
    pub(super) of: &'static str,
    /// The meaning of the word.
    means: Means,
}

#[derive(Clone, Copy, Debug)]
enum Means {
    /// Memory of a card in MiB.
    Memory,
    /// Memory of a card, in GiB.
    Gib,
    /// Memory of a card, as a percentage of it.
    Percent,
    /// A ceiling for compute, in percent.
    Compute,
    /// A number of cards.
    Cards,
    /// A slot of a card that is shared without limits.
    Slot,
    /// Something else, with the fix in words.
    Other(&'static str),
}

/// Resources of containers.
const RESOURCES: [(&str, Word); 15] = [
    ("nvidia.com/gpumem", word("HAMi", Means::Memory)),
    ("nvidia.com/gpumem-percentage", word("HAMi", Means::Percent)),
    ("nvidia.com/gpucores", word("HAMi", Means::Compute)),
    (
        "nvidia.com/priority",
        word("HAMi", Means::Other("set priorityClassName")),
    ),
    ("volcano.sh/gpu-memory", word("Volcano", Means::Memory)),
    ("volcano.sh/gpu-number", word("Volcano", Means::Cards)),
    ("volcano.sh/vgpu-memory", word("Volcano", Means::Memory)),
    ("volcano.sh/vgpu-cores", word("Volcano", Means::Compute)),
    ("volcano.sh/vgpu-number", word("Volcano", Means::Cards)),
    ("aliyun.com/gpu-mem", word("gpushare", Means::Gib)),
    ("aliyun.com/gpu-count", word("gpushare", Means::Cards)),
    (
        "koordinator.sh/gpu-memory-ratio",
        word("Koordinator", Means::Percent),
    ),
    (
        "koordinator.sh/gpu-core",
        word("Koordinator", Means::Compute),
    ),
    (
        "koordinator.sh/gpu-memory",
        word(
            "Koordinator",
            Means::Other("set the annotation gpu-memory, in MiB"),
        ),
    ),
    (
        "nvidia.com/gpu.shared",
        word("NVIDIA's device plugin", Means::Slot),
    ),
];

/// The prefixes of annotations and labels.
const KEYS: [(&str, Word); 9] = [
    ("nvidia.com/use-gputype", word("HAMi", TYPE)),
    ("nvidia.com/nouse-gputype", word("HAMi", TYPE)),
    ("nvidia.com/use-gpuuuid", word("HAMi", CARD)),
    ("nvidia.com/nouse-gpuuuid", word("HAMi", CARD)),
    ("nvidia.com/vgpu-mode", word("HAMi", MODE)),
    ("hami.io/", word("HAMi", STRATEGY)),
    ("volcano.sh/vgpu", word("Volcano", MODE)),
    ("scheduling.volcano.sh/queue-name", word("Volcano", QUEUE)),
    ("volcano.sh/queue-name", word("Volcano", QUEUE)),
];

const TYPE: Means = Means::Other("select nodes by the label nvidia.com/gpu.product");
const CARD: Means = Means::Other("remove it: the scheduler chooses the card");
const MODE: Means = Means::Other("set kai.scheduler/gpu-compute-sharing-mode, or the node's mode");
const STRATEGY: Means =
    Means::Other("remove it: placement is a setting of the scheduler, --gpu-placement");
const QUEUE: Means = Means::Other("set the label kai.scheduler/queue");

const fn word(of: &'static str, means: Means) -> Word {
    Word { of, means }
}

pub(super) fn resource(name: &str) -> Option<Word> {
    let found = RESOURCES.iter().find(|(known, _)| *known == name);
    found.map(|(_, word)| *word)
}

pub(super) fn key(name: &str) -> Option<Word> {
    let found = KEYS.iter().find(|(prefix, _)| name.starts_with(prefix));
    found.map(|(_, word)| *word)
}

impl Word {
    /// Returns what to write instead, with the same value where it is a plain number.
    pub(super) fn fix(self, value: &str) -> String {
        let number = value.parse::<u64>().ok();
        let annotation = |key: &str, number: Option<u64>| match number {
            Some(number) => format!("set the annotation {key}: \"{number}\""),
            None => format!("set the annotation {key}"),
        };
        match self.means {
            Means::Memory => annotation(request::MEMORY, number),
            Means::Gib => annotation(
                request::MEMORY,
                number.and_then(|number| number.checked_mul(1024)),
            ),
            Means::Percent => match number.filter(|number| (1..100).contains(number)) {
                Some(number) => {
                    let fraction = format!("{number:02}");
                    let digits = fraction.trim_end_matches('0');
                    format!("set the annotation {}: \"0.{digits}\"", request::FRACTION)
                }
                None => format!("set the annotation {}", request::FRACTION),
            },
            Means::Compute => annotation(request::COMPUTE, number),
            Means::Cards => format!(
                "set the annotation {}, or {} for whole GPUs",
                request::NUM_DEVICES,
                resource::GPU
            ),
            Means::Slot => format!("set the annotation {}: \"0.25\"", request::FRACTION),
            Means::Other(words) => words.to_owned(),
        }
    }

    /// Returns true if the word requests a GPU or a part of one.
    pub(super) fn asks(self) -> bool {
        matches!(
            self.means,
            Means::Memory | Means::Gib | Means::Percent | Means::Cards | Means::Slot
        )
    }
}
