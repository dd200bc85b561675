//! The filters of the kernel's conntrack tool.

use ::conntrack::LabelNames;
use control::ConnectionQuery;

use crate::errors::UsageError;

/// The connections to choose. Without any filter: all.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Filters")]
pub struct FilterArgs {
    /// Protocol: tcp, udp, icmp, icmpv6, gre, esp or another name or number.
    #[arg(short, long, visible_alias = "protonum", value_name = "PROTOCOL")]
    proto: Option<String>,
    /// Source of the originator's packets: an address or a prefix.
    #[arg(short, long, visible_alias = "orig-src", value_name = "ADDRESS[/LENGTH]")]
    src: Option<String>,
    /// Destination of the originator's packets: an address or a prefix.
    #[arg(short, long, visible_alias = "orig-dst", value_name = "ADDRESS[/LENGTH]")]
    dst: Option<String>,
    /// Source port of the originator's packets.
    #[arg(long, visible_alias = "orig-port-src", value_name = "PORT")]
    sport: Option<u16>,
    /// Destination port of the originator's packets.
    #[arg(long, visible_alias = "orig-port-dst", value_name = "PORT")]
    dport: Option<u16>,
    /// GRE: key of the source, for PPTP its call id.
    #[arg(long, visible_alias = "orig-key-src", value_name = "KEY")]
    srckey: Option<String>,
    /// GRE: key of the destination.
    #[arg(long, visible_alias = "orig-key-dst", value_name = "KEY")]
    dstkey: Option<String>,
    /// Source of the replies: an address or a prefix.
    #[arg(short = 'r', long, value_name = "ADDRESS[/LENGTH]")]
    reply_src: Option<String>,
    /// Destination of the replies: an address or a prefix.
    #[arg(short = 'q', long, value_name = "ADDRESS[/LENGTH]")]
    reply_dst: Option<String>,
    /// Source port of the replies.
    #[arg(long, value_name = "PORT")]
    reply_port_src: Option<u16>,
    /// Destination port of the replies.
    #[arg(long, value_name = "PORT")]
    reply_port_dst: Option<u16>,
    /// Source is translated, to any other address or to this one.
    #[arg(short = 'n', long, value_name = "ADDRESS[/LENGTH]", num_args = 0..=1, default_missing_value = "any")]
    src_nat: Option<String>,
    /// Destination is translated, to any other address or to this one.
    #[arg(short = 'g', long, value_name = "ADDRESS[/LENGTH]", num_args = 0..=1, default_missing_value = "any")]
    dst_nat: Option<String>,
    /// Source or destination is translated, to any other address or to this one (the kernel's tool
    /// has -j for it, which is --json here).
    #[arg(long, value_name = "ADDRESS[/LENGTH]", num_args = 0..=1, default_missing_value = "any")]
    any_nat: Option<String>,
    /// ICMP: type of the originator's packets, a number.
    #[arg(long, value_name = "TYPE")]
    icmp_type: Option<u8>,
    /// ICMP: code of the originator's packets, a number.
    #[arg(long, value_name = "CODE")]
    icmp_code: Option<u8>,
    /// ICMP: identifier.
    #[arg(long, value_name = "ID")]
    icmp_id: Option<u16>,
    /// Status bits that must all be set: ASSURED, SEEN_REPLY, EXPECTED; several with commas.
    #[arg(short = 'u', long, value_name = "STATUS")]
    status: Option<String>,
    /// State of the protocol, for example ESTABLISHED or TIME_WAIT.
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// Address family: ipv4 or ipv6.
    #[arg(short, long, value_name = "FAMILY")]
    family: Option<String>,
    /// Zone of both directions; 0 for connections in no zone.
    #[arg(short = 'w', long, value_name = "ZONE")]
    zone: Option<u16>,
    /// Zone of the original direction alone; 0 for connections in no zone.
    #[arg(long, value_name = "ZONE")]
    orig_zone: Option<u16>,
    /// Zone of the reply direction alone; 0 for connections in no zone.
    #[arg(long, value_name = "ZONE")]
    reply_zone: Option<u16>,
    /// Mark, with a mask if not all its bits count.
    #[arg(short, long, value_name = "MARK[/MASK]")]
    mark: Option<String>,
    /// Labels that a connection must all have, by name or number; several with commas.
    #[arg(short, long, value_name = "LABEL[,LABEL]")]
    label: Vec<String>,
}

impl FilterArgs {
    /// The mark and its mask, for a command that sets the mark and does not choose by it.
    pub fn take_mark(&mut self) -> anyhow::Result<Option<(u32, u32)>> {
        let query = ConnectionQuery { mark: self.mark.take(), ..ConnectionQuery::default() };
        let filter = query.filter(&LabelNames::default());
        Ok(filter.map_err(|error| UsageError(error.to_string()))?.mark)
    }

    /// Refuses filters for a command that takes none; `all` says what the command does without.
    pub fn none(self, all: &str) -> anyhow::Result<()> {
        if self.query()? == ConnectionQuery::default() {
            return Ok(());
        }
        Err(UsageError(format!("filters are for connections; {all}")).into())
    }

    /// The filter for the gateway, checked here so that a mistake is one of usage.
    pub fn query(self) -> anyhow::Result<ConnectionQuery> {
        let Self {
            proto,
            src,
            dst,
            sport,
            dport,
            srckey,
            dstkey,
            reply_src,
            reply_dst,
            reply_port_src: reply_sport,
            reply_port_dst: reply_dport,
            src_nat,
            dst_nat,
            any_nat,
            icmp_type,
            icmp_code,
            icmp_id,
            status,
            state,
            family,
            zone,
            orig_zone,
            reply_zone,
            mark,
            label,
        } = self;
        let query = ConnectionQuery {
            proto,
            src,
            dst,
            sport,
            dport,
            srckey,
            dstkey,
            reply_src,
            reply_dst,
            reply_sport,
            reply_dport,
            src_nat,
            dst_nat,
            any_nat,
            icmp_type,
            icmp_code,
            icmp_id,
            status,
            state,
            family,
            zone,
            orig_zone,
            reply_zone,
            mark,
            label: (!label.is_empty()).then(|| label.join(",")),
            ..ConnectionQuery::default()
        };
        query.check().map_err(|error| UsageError(error.to_string()))?;
        Ok(query)
    }
}
