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

impl PacketPath {
    /// Takes what the other workers have sent, at most a budget of items from each, and processes
    /// the packets. Returns the number of items.
    pub(crate) fn take_from_peers(&mut self, now: Timestamp, mut tell: impl FnMut(News)) -> usize {
        let mut all = 0;
        let budget = self.tracking.settings().steer.netdev_budget();
        for peer in 0..self.buckets.peers() {
            let mut taken = 0;
            while taken < budget
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
            if taken == budget {
                self.counters.softnet.time_squeeze += 1;
            }
            all += taken;
            if let Some(link) = self.buckets.link(peer) {
                link.exchange_buffers(&mut self.pool);
            }
        }
        self.process_batch(now);
        all
    }

    /// A control item takes effect after every packet that came before it.
    fn take_control(&mut self, peer: usize, item: Item, now: Timestamp) -> Option<News> {
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
