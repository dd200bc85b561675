//! Tests with real traffic, through the kernel's own gateways (which proves the harness) and
//! through Stateway. They share one program. Each test has a lab of its own, and those that flood or
//! measure run alone. Each group shows one part of the gateway, and all groups speak in the words of
//! `scenario`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "the modules of a test are tests, which clippy sees in functions marked so only"
)]

mod scenario;

/// The labs themselves: the kernel's own gateways, the end of a lab, packet rates.
mod harness {
    mod kernel_gateways;
    mod lifetime;
    mod packet_rate;
}

/// Bridges and routers: real programs, routes and neighbours, MTUs, tunnels.
mod forwarding {
    mod bare_links;
    mod bridge;
    mod bridge_flooding;
    mod bridged_lan;
    mod kernel_links;
    mod mtu;
    mod route_overruns;
    mod router;

    mod tunnels {
        mod inner_packets;
        mod super_packets;
        mod transit;
    }
}

/// Connection tracking, packet by packet beside the kernel's, and zones that rules set.
mod tracking {
    mod protocols;
    mod zone_rules;
}

/// Helpers: what they announce, beside the kernel's, and real programs that need them.
mod helpers {
    mod announcements;
    mod calls;
    mod files;
    mod h323;
    mod masquerade;
    mod pptp;
    mod pptp_masquerade;
    mod services;
}

/// Network address translation.
mod translation {
    mod choices;
    mod closed_ports;
    mod hairpin;
    mod identifications;
    mod kept_ports;
    mod kernel_sources;
    mod masquerade;
    mod port_forwards;
    mod redirects;
    mod reloads;
}

/// Rulesets: random ones and examples beside the kernel, answers to refused packets, commands.
mod rules {
    mod answers;
    mod bans;
    mod elements;
    mod examples;
    mod groups;
    mod iptables;
    mod meters;
    mod random;
    mod routes;
    mod rulesets;
    mod time;
}

/// Fragmented datagrams: what arrives behind the kernel and behind Stateway.
mod fragments {
    mod attacks;
    mod batch;
    mod differential;
    mod memory;
    mod model;
    mod programs;
    mod refragmentation;
    mod sequence;
}

/// Honest clients during floods of connections, SYNs and stations.
mod floods {
    mod connections;
    mod port_exhaustion;
    mod stations;
    mod syn_proxy;
}

/// Attackers: frames that try to get past the rules, forged packets, hostile text.
mod security {
    mod bypass;
    mod forged_segments;
    mod host_kernel;
    mod hostile_text;
    mod ip_options;
    mod link_headers;
    mod slipstreaming;
    mod source_validation;
}

/// The running program: start and stop, workers, commands, signals, failures around it.
mod operations {
    mod announced;
    mod conntrack_commands;
    mod control_groups;
    mod failover;
    mod failures;
    mod hand_over;
    mod interface_names;
    mod lifecycle;
    mod pfsync;
    mod records;
    mod stacked_interfaces;
    mod stalls;
    mod switch_over;
    mod workers;
}

/// NET policy, of the host's devices and in the gateway.
mod policy {
    mod device;
    mod hold;
    mod host_policies;
    mod lanes;
    mod settings;
    mod trial;
    mod waiting;
}
