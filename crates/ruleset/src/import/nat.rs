//! Translations.

use serde_json::Value;
use wire::Family;

use super::document::has_flag;
use super::rule::Reader;
use super::{expression, keys};
use crate::hook::TableFamily;
use crate::kind::{Kind, names_of, only};
use crate::model::{Data, Nat, NatFlags, NatKind, NatOperand};
use crate::problem::{Parsed, Path};

impl Reader<'_, '_> {
    /// `snat`, `dnat`, `masquerade`, `redirect`.
    pub(super) fn nat(&mut self, kind: NatKind, value: &Value, path: &Path<'_>) -> Parsed<Nat> {
        let named = match value.get("family").and_then(Value::as_str) {
            None => None,
            Some("ip") => Some(Family::V4),
            Some("ip6") => Some(Family::V6),
            Some(_) => return Err(path.key("family").invalid("neither `ip` nor `ip6`")),
        };
        let family = named.or(match self.scope.family {
            TableFamily::Inet => None,
            TableFamily::Ip => Some(Family::V4),
            TableFamily::Ip6 => Some(Family::V6),
        });
        let flags = value.get("flags");
        let flag = |name| has_flag(flags, name);
        let mut nat = Nat {
            kind,
            family,
            address: NatOperand::None,
            port: NatOperand::None,
            netmap: flag("netmap"),
            flags: NatFlags {
                random: flag("random"),
                fully_random: flag("fully-random"),
                persistent: flag("persistent"),
            },
        };
        if let Some(address) = value.get("addr") {
            let path = path.key("addr");
            let kind = match family {
                Some(Family::V4) => Kind::Ipv4,
                Some(Family::V6) => Kind::Ipv6,
                None => return Err(path.invalid("an address without a family")),
            };
            let with_port;
            (nat.address, with_port) = self.nat_operand(address, kind, &path)?;
            if with_port {
                nat.port = NatOperand::WithAddress;
            }
        }
        if let Some(port) = value.get("port") {
            if nat.port != NatOperand::None {
                return Err(path.key("port").invalid("two ports"));
            }
            (nat.port, _) = self.nat_operand(port, Kind::Port, &path.key("port"))?;
        }
        let wants_address = matches!(kind, NatKind::Source | NatKind::Destination);
        if !wants_address && nat.address != NatOperand::None {
            return Err(
                path.invalid("an address, although this statement takes that of the interface")
            );
        }
        if wants_address && nat.address == NatOperand::None && nat.port == NatOperand::None {
            return Err(path.invalid("neither address nor port"));
        }
        Ok(nat)
    }

    /// A constant, range or map, and true if the map holds a port beside the address.
    fn nat_operand(
        &mut self,
        value: &Value,
        kind: Kind,
        path: &Path<'_>,
    ) -> Parsed<(NatOperand, bool)> {
        let Some(("map", map)) = only(value) else {
            return Ok((NatOperand::Fixed(kind.interval(value, path)?), false));
        };
        let path = path.key("map");
        keys::check("map", map, &path)?;
        let key_value = map.get("key").ok_or_else(|| path.invalid("no `key`"))?;
        let key = expression::key(key_value, &mut self.expressions(), &path.key("key"))?;
        let data = map.get("data").ok_or_else(|| path.invalid("no `data`"))?;
        let with_port = kind != Kind::Port && holds_pairs(data);
        let wanted = if with_port { vec![kind, Kind::Port] } else { vec![kind] };
        let map = self.map(data, &key, Data::Values(wanted), &path.key("data"))?;
        let Data::Values(held) = &self.parts.sets[map.index()].data else {
            return Err(path.key("data").invalid("a map to verdicts"));
        };
        let with_port = match held.as_slice() {
            [one] if one.fits(kind) => false,
            [address, port]
                if address.fits(kind) && port.fits(Kind::Port) && kind != Kind::Port =>
            {
                true
            }
            held => {
                return Err(path
                    .key("data")
                    .invalid(format!("a map to {}, not {kind}", names_of(held))));
            }
        };
        Ok((NatOperand::Mapped { key: expression::bare(&key), map }, with_port))
    }
}

/// True if the data of the first element of an anonymous map is a concatenation.
fn holds_pairs(data: &Value) -> bool {
    let first = data.get("set").and_then(|set| set.get(0));
    let datum = first.and_then(|pair| pair.get(1));
    datum.is_some_and(|datum| datum.get("concat").is_some())
}
