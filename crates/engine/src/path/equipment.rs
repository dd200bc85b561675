//! The parts that a packet path is made from.

use conntrack::{Expectations, KnownTunnels, Limits};
use flow::Counters;
use netio::FramePool;
use steer::{SteeringHasher, TunnelSteering, WorkerId};

use crate::BATCH;
use crate::egress::forwarder::Forwarder;
use crate::egress::outputs::Outputs;
use crate::egress::resolver::Resolver;
use crate::egress::stations::StationLimits;
use crate::path::buckets::Buckets;
use crate::path::host_questions::HostQuestions;
use crate::path::nat::translation::Translator;
use crate::path::pass_list::PassList;
use crate::path::reassembly::Reassembly;
use crate::path::recent_drops::RecentDrops;
use crate::path::records::LateImports;
use crate::path::settings::Settings;
use crate::path::syn_proxy::SynProxy;
use crate::path::tracking::Tracking;
use crate::path::upkeep::Upkeep;
use crate::path::zones::Zones;
use crate::path::{PacketPath, TimeSource};

/// Free buffers that a worker keeps: small ones for 4 backlogs, and enough large
/// ones for two batches of super-packets.
const POOL_SMALL: usize = 4096;
const POOL_LARGE: usize = 256;

/// The parts that a packet path is made from.
pub struct PathEquipment {
    /// The number of the worker.
    pub id: WorkerId,
    /// How packets find their bucket.
    pub hasher: SteeringHasher,
    /// The protocols other than IP that pass.
    pub pass: PassList,
    /// Owner of each bucket.
    pub routes: Vec<WorkerId>,
    /// For each port, true if it accepts no new connections.
    pub refuses_new: Vec<bool>,
    /// Ports that frames leave by: the first so many.
    pub outputs: usize,
    /// Stations that a bridge remembers.
    pub stations: StationLimits,
    /// Tunables.
    pub settings: Settings,
    /// Zones, before any settings are applied to them.
    pub zones: Zones,
    /// Connections that the worker may hold.
    pub limits: Limits,
    /// Connections that others have announced.
    pub expectations: Expectations,
    /// Tunnels whose packets come to many buckets.
    pub tunnels: KnownTunnels,
    /// Bytes of fragments that the worker may hold.
    pub fragment_memory: defrag::Memory,
    /// The clock that counts.
    pub time: TimeSource,
    /// How neighbours are asked for: this makes it a router.
    pub resolver: Option<Resolver>,
    /// How the host is asked about packets that it may refuse.
    pub host_questions: Option<HostQuestions>,
}

impl PacketPath {
    /// The packet path of a worker that owns no bucket yet.
    pub(crate) fn new(equipment: PathEquipment) -> Self {
        let PathEquipment { id, hasher, pass, routes, settings, zones, mut limits, time, .. } =
            equipment;
        limits.set_all_tables(routes.len() as u32);
        let key = hasher.config().key;
        let PathEquipment { expectations, tunnels, refuses_new, .. } = equipment;
        let outputs = Outputs::new(equipment.outputs, equipment.stations, key);
        let keep_limit = settings.steer.netdev_max_backlog();
        let mut forwarder = Forwarder::new(outputs, equipment.resolver);
        forwarder.set_waiting_bytes(settings.next_hops.unres_qlen_bytes);
        let mut tracking = Tracking::new(id, settings, zones, limits, expectations, tunnels);
        tracking.refuse_new(refuses_new);
        if hasher.config().tunnels == TunnelSteering::Judged {
            tracking.look_inside(key);
        }
        Self {
            hasher,
            hasher_to_come: None,
            pass,
            time,
            reassembly: Reassembly::new(key, equipment.fragment_memory),
            tracking,
            syn_proxy: SynProxy::new(key),
            translator: Translator::new(id.0, key),
            buckets: Buckets::new(id, routes, keep_limit),
            rules: None,
            cpu: None,
            forwarder,
            host_questions: equipment.host_questions.map(Box::new),
            pool: FramePool::new(POOL_SMALL, POOL_LARGE),
            counters: Counters::default(),
            recent_drops: match time {
                TimeSource::Turn => RecentDrops::latest(),
                TimeSource::Frame => RecentDrops::all(),
            },
            batch: Vec::with_capacity(2 * BATCH),
            apart: Vec::new(),
            discarded: Vec::new(),
            upkeep: Upkeep::default(),
            late_imports: LateImports::default(),
            change_sender: None,
            deferrals: None,
        }
    }
}
