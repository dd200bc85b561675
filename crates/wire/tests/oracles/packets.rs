//! Valid packets of every shape that the dissector and its oracles know.

use proptest::{collection::vec, prelude::*};
use wire::{
    TcpFlags,
    build::{PacketBuilder, Tcp},
};

const ROUTING: u8 = 43;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// The part of a packet behind the IP header.
#[derive(Clone, Debug)]
pub enum Content {
    Tcp {
        ports: (u16, u16),
        numbers: (u32, u32),
        flags: u8,
        window: u16,
        options: Vec<u8>,
    },
    Udp {
        ports: (u16, u16),
    },
    Echo {
        reply: bool,
        id: u16,
    },
    Error {
        kind: u8,
        code: u8,
        quoted_ports: (u16, u16),
    },
    Fragment {
        offset: u16,
        more: bool,
    },
    /// IPv6 only: extension headers before UDP.
    Extended {
        chain: Vec<(u8, Vec<u8>)>,
        ports: (u16, u16),
    },
}

fn content() -> impl Strategy<Value = Content> {
    let tcp = (
        any::<(u16, u16)>(),
        any::<(u32, u32)>(),
        any::<u8>(),
        any::<u16>(),
        vec(any::<u8>(), 0..40),
    )
        .prop_map(|(ports, numbers, flags, window, options)| Content::Tcp {
            ports,
            numbers,
            flags,
            window,
            options,
        });
    let header = prop_oneof![Just(ROUTING), Just(AUTHENTICATION), Just(DESTINATION_OPTIONS)];
    // The body of a header of 16 or 24 bytes: an authentication header has 12 or more.
    let body = (1usize..3).prop_flat_map(|units| vec(any::<u8>(), 6 + 8 * units));
    prop_oneof![
        4 => tcp,
        4 => any::<(u16, u16)>().prop_map(|ports| Content::Udp { ports }),
        2 => any::<(bool, u16)>().prop_map(|(reply, id)| Content::Echo { reply, id }),
        2 => (1u8..5, any::<u8>(), any::<(u16, u16)>())
            .prop_map(|(kind, code, quoted_ports)| Content::Error { kind, code, quoted_ports }),
        2 => (0u16..8000, any::<bool>())
            .prop_map(|(units, more)| Content::Fragment { offset: units * 8, more }),
        2 => (vec((header, body), 0..4), any::<(u16, u16)>())
            .prop_map(|(chain, ports)| Content::Extended { chain, ports }),
    ]
}

/// A frame with at most `tags` VLAN tags.
pub fn frame(tags: usize) -> impl Strategy<Value = Vec<u8>> {
    (
        any::<bool>(),
        vec(any::<u16>(), 0..=tags),
        any::<(u8, u8, u32, bool)>(),
        any::<([u8; 16], [u8; 16])>(),
        vec(any::<u8>(), 0..40),
        content(),
        vec(any::<u8>(), 0..100),
        0usize..20,
    )
        .prop_map(
            |(
                v6,
                tags,
                (ttl, class, id, df),
                (source, destination),
                options,
                content,
                payload,
                padding,
            )| {
                let v6 = v6 || matches!(content, Content::Extended { .. });
                let mut builder = if v6 {
                    PacketBuilder::v6(source, destination)
                } else {
                    let four = |a: [u8; 16]| [a[0], a[1], a[2], a[3]];
                    PacketBuilder::v4(four(source), four(destination)).options(&options)
                };
                builder = builder.ttl(ttl).traffic_class(class).id(id);
                if df {
                    builder = builder.dont_fragment();
                }
                builder = tags.into_iter().fold(builder, PacketBuilder::vlan);
                let mut out = Vec::new();
                write(&builder, &content, v6, &payload, &mut out);
                // Ethernet padding.
                out.resize(out.len() + padding, 0);
                out
            },
        )
}

fn write(builder: &PacketBuilder, content: &Content, v6: bool, payload: &[u8], out: &mut Vec<u8>) {
    match content {
        Content::Tcp { ports, numbers, flags, window, options } => {
            let tcp = Tcp {
                source_port: ports.0,
                destination_port: ports.1,
                sequence: numbers.0,
                acknowledgment: numbers.1,
                flags: TcpFlags(*flags),
                window: *window,
                options,
            };
            builder.tcp(&tcp, payload, out);
        }
        Content::Udp { ports } => builder.udp(ports.0, ports.1, payload, out),
        Content::Echo { reply, id } => builder.echo(*reply, *id, 1, payload, out),
        Content::Error { kind, code, quoted_ports } => {
            let kind = if v6 { *kind } else { [3, 4, 11, 12][usize::from(kind - 1)] };
            let about = if v6 {
                PacketBuilder::v6([0x20; 16], [0x21; 16])
            } else {
                PacketBuilder::v4([192, 0, 2, 1], [198, 51, 100, 1])
            };
            let mut quoted = Vec::new();
            about.udp(quoted_ports.0, quoted_ports.1, payload, &mut quoted);
            builder.icmp_error(kind, *code, [0; 4], &quoted[14..], out);
        }
        Content::Fragment { offset, more } => {
            let mut piece = payload.to_vec();
            // Long enough for a first fragment of UDP.
            piece.resize(piece.len().max(8).next_multiple_of(8), 0);
            piece[4..6].copy_from_slice(&2000u16.to_be_bytes());
            // An atomic fragment is the whole datagram.
            if *offset == 0 && !more {
                let length = piece.len() as u16;
                piece[4..6].copy_from_slice(&length.to_be_bytes());
            }
            builder.fragment(17, *offset, *more, &piece, out);
        }
        Content::Extended { chain, ports } => {
            let mut bytes = Vec::new();
            for (index, (number, body)) in chain.iter().enumerate() {
                let next = chain.get(index + 1).map_or(17, |(number, _)| *number);
                let length = body.len() + 2;
                let field = if *number == AUTHENTICATION { length / 4 - 2 } else { length / 8 - 1 };
                bytes.extend([next, field as u8]);
                bytes.extend(body);
            }
            bytes.extend(ports.0.to_be_bytes());
            bytes.extend(ports.1.to_be_bytes());
            bytes.extend((8 + payload.len() as u16).to_be_bytes());
            bytes.extend([0, 0]);
            bytes.extend(payload);
            let first = chain.first().map_or(17, |(number, _)| *number);
            builder.transport(first, &bytes, out);
        }
    }
}
