//! The tracking stage: class and verdict of a packet in its bucket.

use conntrack::{Context, Event, ExpectationEvent, Expectations, Limits, TrackedPacket, Why};
use flow::{Class, Counters, Timestamp, Verdict, Zone};
use netio::Checksum;

use crate::Bucket;
use crate::events::Subscribers;
use crate::packet::{Packet, TrackedFlow};
use crate::settings::Settings;
use crate::zones::Zones;

/// What tracking needs beside the bucket, one for each worker.
pub struct Tracking {
    /// Tunables.
    pub settings: Settings,
    /// What is different in each zone.
    pub zones: Zones,
    /// How many connections there may be.
    pub limits: Limits,
    /// Connections that others have announced; shared by all workers.
    pub expectations: Expectations,
    /// Which ports accept no new connections.
    pub refuses_new: Vec<bool>,
    /// Who listens to events.
    pub subscribers: Subscribers<Event>,
    /// Who listens to what is expected.
    pub expectation_subscribers: Subscribers<ExpectationEvent>,
}

impl Tracking {
    /// Takes over changed tunables.
    pub fn apply(&mut self, settings: Settings) {
        self.zones.apply(&settings.conntrack);
        self.settings = settings;
    }

    /// Takes over changed zones.
    pub fn set_zones(&mut self, mut zones: Zones) {
        zones.apply(&self.settings.conntrack);
        self.zones = zones;
    }

    /// What the connection table needs from its worker for whatever is not about a packet
    /// of one zone.
    pub fn context<'a>(&'a mut self, now: Timestamp, counters: &'a mut Counters) -> Context<'a> {
        self.context_of(None, now, counters)
    }

    /// The same for a packet of one zone.
    #[inline]
    fn context_of<'a>(
        &'a mut self,
        zone: Option<Zone>,
        now: Timestamp,
        counters: &'a mut Counters,
    ) -> Context<'a> {
        let settings = zone.and_then(|zone| self.zones.settings(zone));
        Context {
            now,
            settings: settings.unwrap_or(&self.settings.conntrack),
            limits: &mut self.limits,
            counters: &mut counters.conntrack,
            expectations: &self.expectations,
            events: self.subscribers.sink(),
            expectation_events: self.expectation_subscribers.sink(),
        }
    }

    /// The tunables of tracking in a zone.
    pub fn settings_of(&self, zone: Zone) -> &conntrack::Settings {
        self.zones.settings(zone).unwrap_or(&self.settings.conntrack)
    }

    /// Judges a packet: until a ruleset is loaded, everything passes that is not
    /// INVALID. If it is `screened`, the SYN proxy is asked before it opens a connection.
    ///
    /// # Errors
    /// Why the packet is to be dropped.
    pub fn judge(
        &mut self,
        bucket: &mut Bucket,
        packet: &Packet,
        screened: bool,
        now: Timestamp,
        counters: &mut Counters,
    ) -> Result<(), Why> {
        let Some(TrackedFlow { keyed, hash: Some(hash) }) = &packet.flow else {
            let class = conntrack::class_without_flow(&packet.network);
            counters.classify(class);
            return match class {
                Class::Invalid(reason) => Err(reason.into()),
                _ => Ok(()),
            };
        };
        let may_open = !self.refuses_new[usize::from(packet.frame.port.0)];
        let mut context = self.context_of(Some(keyed.key.zone), now, counters);
        let tracked_packet = TrackedPacket {
            network: &packet.network,
            frame: packet.frame.bytes(),
            keyed,
            hash: *hash,
            checksum: match packet.frame.offload.checksum {
                Checksum::Complete => conntrack::Checksum::Verify,
                Checksum::Verified | Checksum::Partial { .. } => conntrack::Checksum::Trust,
            },
            segments: packet.frame.segments(),
            may_open,
            screened: screened && may_open && context.settings.syn_proxy.half_open != 0,
        };
        let tracked = bucket.connections.track_unjudged(&tracked_packet, &mut context);
        if tracked.verdict == Verdict::Accept {
            counters.classify(tracked.class);
        }
        tracked.why.map_or(Ok(()), Err)
    }
}
