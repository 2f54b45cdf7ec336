//! The openb trace: nodes, pods and orders of arrival, from the files of its authors.

use anyhow::{Context, Result, anyhow, bail};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// A node with its cards, all alike.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub name: String,
    /// Millicores.
    pub cpu: u64,
    pub memory_mib: u64,
    pub cards: usize,
    pub model: Rc<str>,
}

/// What many pods have alike. The order breaks ties among typical pods; the accepted
/// models are compared as they are written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Shape {
    pub cpu: u64,
    /// Thousandths of each card.
    pub milli: u32,
    pub cards: usize,
    /// `A|B`; empty: any model.
    pub models: String,
}

impl Shape {
    /// Thousandths of GPUs in all.
    pub(crate) fn gpus(&self) -> u64 {
        u64::from(self.milli) * self.cards as u64
    }

    pub(crate) fn accepts(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.split('|').any(|one| one == model)
    }
}

/// A pod of the list.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub name: String,
    /// Index into [`Trace::shapes`].
    pub shape: usize,
    pub memory_mib: u64,
    /// From its creation to its deletion, seconds; some lists do not say it.
    pub lifetime: Option<f64>,
}

/// One seed's run.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Rows of the pod list.
    pub arrivals: Vec<usize>,
    /// Nodes, the lowest rank first.
    pub nodes: Vec<usize>,
}

/// A trace and its orders.
#[derive(Debug)]
pub(crate) struct Trace {
    /// In order of name.
    pub nodes: Vec<Node>,
    pub pods: Vec<Pod>,
    pub shapes: Vec<Shape>,
    /// How many pods of the list have each shape.
    pub counts: Vec<u64>,
    pub orders: Vec<Order>,
}

impl Trace {
    /// Reads `openb_node_list_gpu_node.csv`, `openb_pod_list_<name>.csv` and its orders.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self> {
        let text = |file: String| {
            let path = folder.join(file);
            std::fs::read_to_string(&path).with_context(|| path.display().to_string())
        };
        let mut nodes = Vec::new();
        for line in text("openb_node_list_gpu_node.csv".into())?.lines().skip(1) {
            let [name, cpu, memory, cards, model] = columns(line)?;
            nodes.push(Node {
                name: name.to_owned(),
                cpu: cpu.parse()?,
                memory_mib: memory.parse()?,
                cards: cards.parse()?,
                model: Rc::from(model),
            });
        }
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        let mut trace = Self {
            nodes,
            pods: Vec::new(),
            shapes: Vec::new(),
            counts: Vec::new(),
            orders: Vec::new(),
        };
        let mut known: HashMap<Shape, usize> = HashMap::new();
        for line in text(format!("openb_pod_list_{name}.csv"))?.lines().skip(1) {
            let [name, cpu, memory, cards, milli] = columns(line)?;
            let cards = cards.parse()?;
            let shape = Shape {
                cpu: cpu.parse()?,
                milli: if cards == 0 { 0 } else { milli.parse()? },
                cards,
                models: line.split(',').nth(5).unwrap_or_default().to_owned(),
            };
            let index = *known.entry(shape.clone()).or_insert(trace.shapes.len());
            if index == trace.shapes.len() {
                trace.shapes.push(shape);
                trace.counts.push(0);
            }
            trace.counts[index] += 1;
            let time = |column: usize| line.split(',').nth(column)?.parse::<f64>().ok();
            trace.pods.push(Pod {
                name: name.to_owned(),
                shape: index,
                memory_mib: memory.parse()?,
                lifetime: time(9).zip(time(8)).map(|(end, start)| end - start),
            });
        }
        let path = folder.join(format!("orders/openb_pod_list_{name}.bin"));
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() {
            let order = trace.order(&mut bytes)?;
            trace.orders.push(order);
        }
        Ok(trace)
    }

    fn order(&self, bytes: &mut &[u8]) -> Result<Order> {
        let (head, rest) = bytes
            .split_first_chunk::<4>()
            .context("half an order of arrival")?;
        *bytes = rest;
        let arrivals = numbers(bytes, u32::from_le_bytes(*head) as usize)?;
        let ranks = numbers(bytes, self.nodes.len())?;
        let mut nodes: Vec<usize> = (0..self.nodes.len()).collect();
        nodes.sort_by_key(|node| ranks[*node]);
        if arrivals.iter().any(|pod| *pod >= self.pods.len()) {
            bail!("an order of arrival names a pod that is not in the list");
        }
        Ok(Order { arrivals, nodes })
    }

    /// Thousandths of all cards.
    pub(crate) fn capacity(&self) -> u64 {
        self.nodes.iter().map(|node| 1000 * node.cards as u64).sum()
    }
}

fn columns<const N: usize>(line: &str) -> Result<[&str; N]> {
    let all: Vec<&str> = line.split(',').take(N).collect();
    <[&str; N]>::try_from(all).map_err(|_| anyhow!("too few columns: {line}"))
}

fn numbers(bytes: &mut &[u8], count: usize) -> Result<Vec<usize>> {
    let (part, rest) = bytes
        .split_at_checked(2 * count)
        .context("half an order of arrival")?;
    *bytes = rest;
    Ok(part
        .chunks_exact(2)
        .map(|pair| usize::from(u16::from_le_bytes([pair[0], pair[1]])))
        .collect())
}
