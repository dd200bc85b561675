//! Items that come from the other workers.

use flow::Timestamp;
use steer::BucketId;

use crate::path::PacketPath;
use crate::path::packet::Item;

/// Something from another worker that the coordinator is to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A bucket has arrived.
    Arrived(BucketId),
    /// A marker has arrived.
    Marker(u64),
}

/// Most items that a worker takes from each other one in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBudget {
    /// Packets of latency.
    pub latency: usize,
    /// Packets of bulk and control items.
    pub bulk: usize,
}

/// The items that came from the other workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Their number.
    pub items: usize,
    /// The budget was too small for one of the workers.
    pub is_more: bool,
}

impl PacketPath {
    /// Takes what the other workers have sent, at most a budget of items from each, and processes
    /// the packets. Packets of latency come first and leave at once.
    pub(crate) fn take_from_peers(
        &mut self,
        budget: PeerBudget,
        now: Timestamp,
        mut tell: impl FnMut(News),
    ) -> Taken {
        let mut all = Taken::default();
        for peer in 0..self.buckets.peers() {
            let latency = self.take_latency(peer, budget.latency, now);
            if latency > 0 {
                self.process_batch(now);
                self.send();
            }
            let mut taken = 0;
            while taken < budget.bulk
                && let Some(item) = self.buckets.link(peer).and_then(|link| link.take())
            {
                taken += 1;
                match item {
                    Item::Packet(packet) => self.take_packet(packet, now),
                    control => {
                        if let Some(news) = self.take_control(peer, control, now) {
                            tell(news);
                        }
                    }
                }
            }
            if taken == budget.bulk {
                self.counters.softnet.time_squeeze += 1;
            }
            all.items += latency + taken;
            all.is_more |= latency == budget.latency || taken == budget.bulk;
            if let Some(link) = self.buckets.link(peer) {
                link.exchange_buffers(&mut self.pool);
            }
        }
        self.process_batch(now);
        all
    }

    /// Takes packets of latency. Returns their number.
    fn take_latency(&mut self, peer: usize, most: usize, now: Timestamp) -> usize {
        let mut taken = 0;
        while taken < most
            && let Some(item) = self.buckets.link(peer).and_then(|link| link.take_latency())
        {
            taken += 1;
            if let Item::Packet(packet) = item {
                self.take_packet(packet, now);
            }
        }
        taken
    }

    /// A control item takes effect after every packet that came before it, also in the ring of latency.
    fn take_control(&mut self, peer: usize, item: Item, now: Timestamp) -> Option<News> {
        let before = self.buckets.link(peer).map_or(0, |link| link.latency_slots());
        self.take_latency(peer, before, now);
        self.process_batch(now);
        match item {
            Item::Packet(packet) => self.batch.push(packet),
            Item::Fence(bucket) => self.take_fence(bucket),
            Item::Bucket(bucket, content) => {
                self.take_bucket(bucket, content, now);
                return Some(News::Arrived(bucket));
            }
            Item::Alias(bucket, message) => self.take_message(bucket, message, now),
            Item::Flush(bucket) => {
                if let Some(link) = self.buckets.link(peer) {
                    link.stage(Item::Flushed(bucket));
                }
            }
            Item::Flushed(bucket) => self.buckets.flushed(bucket),
            Item::Station(heard) => self.forwarder.learn_from_peer(heard),
            Item::Marker(marker) => return Some(News::Marker(marker)),
        }
        None
    }
}
