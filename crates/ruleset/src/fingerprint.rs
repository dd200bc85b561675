//! A number by which two gateways see whether they have the same rules.

use std::fmt::{self, Write};
use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::elements::Element;
use crate::model::{Chain, Counter, Parts, Quota, Rule, Set};

/// Takes text in and remembers a digest of it.
#[derive(Default)]
struct Digest(SipHasher13);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Digest {
    fn add(&mut self, text: fmt::Arguments<'_>) {
        // Writing to a digest never fails.
        let _ = self.write_fmt(text);
        // The end of the text: two texts are not one.
        self.0.write_u8(0xff);
    }

    fn finish(&self) -> u128 {
        self.0.finish128().as_u128()
    }
}

impl Parts {
    /// A number that is the same for two rulesets which say the same: the same chains, rules, objects
    /// and elements. Handles, comments and the order of elements do not count, nor do values that
    /// change while rules run: counters, used quotas, and elements that end some time.
    ///
    /// Two rulesets that differ have different numbers, unless somebody has made them for that.
    /// Another version of this program may give another number.
    pub fn fingerprint(&self) -> u128 {
        let Self {
            chains,
            rules,
            sets,
            counters,
            limits,
            quotas,
            bounds,
            logs,
            nats,
            helpers,
            timeouts,
            syn_proxies,
            generators,
            host_chains,
            bases,
        } = self;
        let mut digest = Digest::default();
        for Chain { family, table, name, handle: _, base, rules } in chains {
            digest.add(format_args!("{:?}", (family, table, name, base, rules)));
        }
        for Rule { chain, handle: _, comment: _, position: _, items } in rules {
            digest.add(format_args!("{:?}", (chain, items)));
        }
        for set in sets {
            add_set(&mut digest, set);
        }
        for Counter { name, position: _, packets: _, bytes: _ } in counters {
            digest.add(format_args!("{name:?}"));
        }
        for Quota { name, position: _, bytes, used: _, over } in quotas {
            digest.add(format_args!("{:?}", (name, bytes, over)));
        }
        digest.add(format_args!("{:?}", (limits, bounds, logs, nats, helpers, timeouts)));
        digest.add(format_args!("{:?}", (syn_proxies, generators, host_chains, bases)));
        digest.finish()
    }
}

fn add_set(digest: &mut Digest, set: &Set) {
    let Set {
        family,
        table,
        name,
        position: _,
        key,
        data,
        dynamic,
        timeout,
        size,
        parts,
        declares_parts,
        elements,
    } = set;
    digest.add(format_args!("{:?}", (family, table, name, key, data, dynamic, timeout)));
    digest.add(format_args!("{:?}", (size, parts, declares_parts)));
    // A sum has no order.
    let lasting = elements.iter().filter(|element| element.expires().is_none());
    let (count, sum) = lasting.fold((0_u64, 0_u128), |(count, sum), element| {
        (count + 1, sum.wrapping_add(digest_of(element)))
    });
    digest.add(format_args!("{count} {sum}"));
}

fn digest_of(element: Element<'_>) -> u128 {
    let mut digest = Digest::default();
    element.key().for_each(|part| digest.add(format_args!("{part:?}")));
    let values = (0..).map_while(|at| element.value(at));
    values.for_each(|part| digest.add(format_args!("{part:?}")));
    digest.add(format_args!("{:?}", element.verdict()));
    digest.finish()
}

#[cfg(test)]
#[path = "fingerprint_tests.rs"]
mod tests;
