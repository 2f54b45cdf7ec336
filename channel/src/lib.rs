//! Unbounded channels whose lengths are metrics.
//!
//! A sender of an unbounded channel never waits, so a receiver that is too slow shows only as memory.
//! Here every such channel has a name, and a gauge says how many items wait in all channels of that
//! name.
#![forbid(unsafe_code)]

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendError, TryRecvError};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Label {
    queue: &'static str,
}

/// The lengths of a program's channels, by name.
#[derive(Clone, Debug, Default)]
pub struct Lengths(Family<Label, Gauge>);

impl Lengths {
    /// Registers the gauges as one family, with the label `queue`.
    pub fn register(&self, registry: &mut Registry, name: &str, help: &str) {
        registry.register(name, help, self.0.clone());
    }

    /// Returns the gauge of that name, for items that wait in more places than a channel.
    #[must_use]
    pub fn gauge(&self, queue: &'static str) -> Gauge {
        self.0.get_or_create_owned(&Label { queue })
    }

    /// Makes a channel. The lengths of channels with the same name are added up.
    #[must_use]
    pub fn unbounded<T>(&self, queue: &'static str) -> (Sender<T>, Receiver<T>) {
        let (items, received) = mpsc::unbounded_channel();
        let length = self.gauge(queue);
        let sender = Sender {
            items,
            length: length.clone(),
        };
        let receiver = Receiver {
            items: received,
            length,
        };
        (sender, receiver)
    }
}

/// Makes a channel whose length nobody reads, for tests.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    Lengths::default().unbounded("")
}

/// The sending end of a channel. It never waits.
#[derive(Debug)]
pub struct Sender<T> {
    items: mpsc::UnboundedSender<T>,
    length: Gauge,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            items: self.items.clone(),
            length: self.length.clone(),
        }
    }
}

impl<T> Sender<T> {
    /// Sends an item.
    ///
    /// # Errors
    /// The receiver is gone; the error has the item.
    pub fn send(&self, item: T) -> Result<(), SendError<T>> {
        // Counted before it is sent: the receiver may have taken it before `send` returns.
        self.length.inc();
        let sent = self.items.send(item);
        if sent.is_err() {
            self.length.dec();
        }
        sent
    }

    /// Returns true if the receiver is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.items.is_closed()
    }

    /// Waits until the receiver is gone.
    pub async fn closed(&self) {
        self.items.closed().await;
    }
}

/// The receiving end of a channel, which returns the items in the order in which they were sent.
#[derive(Debug)]
pub struct Receiver<T> {
    items: mpsc::UnboundedReceiver<T>,
    length: Gauge,
}

impl<T> Receiver<T> {
    /// Waits for the next item. `None`: all senders are gone. Nothing is lost if the future is dropped.
    pub async fn recv(&mut self) -> Option<T> {
        let item = self.items.recv().await?;
        self.length.dec();
        Some(item)
    }

    /// Returns the next item, if one is there.
    ///
    /// # Errors
    /// No item is there, or all senders are gone.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        let item = self.items.try_recv()?;
        self.length.dec();
        Ok(item)
    }

    /// Returns the number of items that wait in this channel.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if no item waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // Items that nobody will receive no longer wait.
        self.items.close();
        while self.try_recv().is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;

    #[tokio::test]
    async fn a_gauge_has_what_waits_in_all_channels_of_its_name() {
        let lengths = Lengths::default();
        let (a, mut from_a) = lengths.unbounded("facts");
        let (b, from_b) = lengths.unbounded("facts");
        let (other, _from_other) = lengths.unbounded("notes");
        for item in 0..3 {
            a.send(item).unwrap();
            b.clone().send(item).unwrap();
        }
        other.send(0).unwrap();
        assert_eq!(lengths.gauge("facts").get(), 6);
        assert_eq!(from_a.recv().await, Some(0));
        assert_eq!(from_a.try_recv(), Ok(1));
        assert_eq!((from_a.len(), lengths.gauge("facts").get()), (1, 4));

        drop(from_b);
        assert!(b.is_closed() && b.send(9).is_err());
        assert_eq!(lengths.gauge("facts").get(), 1);
        drop(a);
        assert_eq!((from_a.recv().await, from_a.recv().await), (Some(2), None));
        assert_eq!(lengths.gauge("facts").get(), 0);

        let mut registry = Registry::default();
        lengths.register(&mut registry, "queued", "Items that wait");
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert!(text.contains("queued{queue=\"notes\"} 1"), "{text}");
    }
}
