//! Sets that join their ranges (`auto-merge`): a range that overlaps with others or lies beside them
//! becomes one with them, and a part of a range can be deleted.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Listed, property};
use crate::kind::{Interval, Kind};
use crate::listing::json_of;

/// The elements of such a set, by their first values. They are apart from each other.
pub(super) struct Merging {
    kind: Kind,
    elements: BTreeMap<u128, Listed>,
    /// The element `*`, which is no range.
    catch_all: Option<Listed>,
}

impl Merging {
    /// Elements whose keys are one value or range each, apart from each other, and possibly `*`.
    pub fn new(kind: Kind, elements: Vec<Listed>) -> Self {
        let (mut rest, elements): (Vec<Listed>, Vec<Listed>) =
            elements.into_iter().partition(|element| element.key.is_empty());
        let by_first = |element: Listed| (of(&element).low, element);
        let elements = elements.into_iter().map(by_first).collect();
        Self { kind, elements, catch_all: rest.pop() }
    }

    /// Adds an element. Ranges that it touches become one range with it, which has its timeout and
    /// comment, as in nft. False if it changes nothing.
    pub fn add(&mut self, element: Listed) -> bool {
        if element.key.is_empty() {
            let changes = self.catch_all.is_none() || property(&element.value, "timeout").is_some();
            self.catch_all = if changes { Some(element) } else { self.catch_all.take() };
            return changes;
        }
        let added = of(&element);
        if let Some((_, known)) = self.elements.range_mut(..=added.low).next_back()
            && of(known).high >= added.high
        {
            let is_put_off = of(known) == added && property(&element.value, "timeout").is_some();
            if is_put_off {
                known.value = element.value;
            }
            return is_put_off;
        }
        let mut whole = added;
        let before = self.elements.range(..added.low).next_back().map(|(_, known)| of(known));
        if let Some(before) = before.filter(|it| it.high >= added.low.saturating_sub(1)) {
            whole.low = before.low;
        }
        // A range that the sum touches reaches no other one: these are apart.
        while let Some((_, touched)) =
            self.elements.range(whole.low..=whole.high.saturating_add(1)).next()
        {
            let touched = of(touched);
            whole.high = whole.high.max(touched.high);
            self.elements.remove(&touched.low);
        }
        let value =
            if whole == added { element.value } else { self.with_key(element.value, whole) };
        self.elements.insert(whole.low, Listed { key: vec![whole], value });
        true
    }

    /// Adds an element of another set, unless these hold all of it. It joins with ranges as an element
    /// that is [added](Self::add) does. Where some end and others do not, those that are here stay as
    /// they are, and get what is missing beside them. False if nothing is missing.
    pub fn keep(&mut self, element: Listed) -> bool {
        if element.key.is_empty() {
            let is_new = self.catch_all.is_none();
            self.catch_all.get_or_insert(element);
            return is_new;
        }
        let kept = of(&element);
        let touched: Vec<(Interval, bool)> = self
            .elements
            .range(..=kept.high.saturating_add(1))
            .rev()
            .map(|(_, known)| (of(known), ends(known)))
            .take_while(|(known, _)| known.high >= kept.low.saturating_sub(1))
            .collect();
        if touched.iter().any(|(known, _)| known.low <= kept.low && kept.high <= known.high) {
            return false;
        }
        if touched.iter().all(|(_, known)| !known) && !ends(&element) {
            return self.add(element);
        }
        // From the highest on, so the rest lies below.
        let mut rest = Some(kept);
        for (known, _) in touched {
            let Some(Interval { low, high }) = rest else { break };
            if known.low > high || known.high < low {
                continue;
            }
            self.put_part(&element, known.high.checked_add(1).map(|low| Interval { low, high }));
            rest = known.low.checked_sub(1).map(|high| Interval { low, high });
            rest = rest.filter(|rest| rest.low <= rest.high);
        }
        self.put_part(&element, rest);
        true
    }

    /// Puts a part of an element among the others, if there is such a part.
    fn put_part(&mut self, element: &Listed, part: Option<Interval>) {
        if let Some(part) = part.filter(|part| part.low <= part.high) {
            let value = self.with_key(element.value.clone(), part);
            self.elements.insert(part.low, Listed { key: vec![part], value });
        }
    }

    /// Deletes an element, or a part of one. False if none has all of it.
    pub fn cut(&mut self, element: &Listed) -> bool {
        if element.key.is_empty() {
            return self.catch_all.take().is_some();
        }
        let deleted = of(element);
        let known = self.elements.range(..=deleted.low).next_back();
        let Some((&first, whole)) = known.filter(|(_, known)| of(known).high >= deleted.high)
        else {
            return false;
        };
        let (whole, value) = (of(whole), whole.value.clone());
        self.elements.remove(&first);
        let below =
            (whole.low < deleted.low).then(|| Interval { low: whole.low, high: deleted.low - 1 });
        let above = (deleted.high < whole.high)
            .then(|| Interval { low: deleted.high + 1, high: whole.high });
        for rest in below.into_iter().chain(above) {
            let value = self.with_key(value.clone(), rest);
            self.elements.insert(rest.low, Listed { key: vec![rest], value });
        }
        true
    }

    /// The elements, in the order of their values.
    pub fn into_elements(self) -> Vec<Listed> {
        self.elements.into_values().chain(self.catch_all).collect()
    }

    /// An element of another key with the other properties of this one.
    fn with_key(&self, mut value: Value, key: Interval) -> Value {
        let key = self.json_of(key);
        match value.get_mut("elem").and_then(|inside| inside.get_mut("val")) {
            Some(val) => *val = key,
            None => value = key,
        }
        value
    }

    /// An interval as nft prints it.
    fn json_of(&self, Interval { low, high }: Interval) -> Value {
        let ends = [low, high].map(|end| json_of(self.kind, end));
        let below = high - low;
        let is_prefix = below & below.wrapping_add(1) == 0 && low & below == 0;
        match ends {
            [one, _] if low == high => one,
            [address, _] if is_prefix && matches!(self.kind, Kind::Ipv4 | Kind::Ipv6) => {
                let length = u32::from(self.kind.bits()) - below.count_ones();
                json!({ "prefix": { "addr": address, "len": length } })
            }
            ends => json!({ "range": ends }),
        }
    }
}

/// True if a set with these fields joins its ranges.
pub(super) fn merges(kind: &str, fields: &serde_json::Map<String, Value>, types: &[Kind]) -> bool {
    // The names of interfaces have no order in which people would write a range.
    let has_ranges = matches!(types, [kind] if !matches!(kind, Kind::Interface | Kind::Time));
    kind == "set" && has_ranges && fields.get("auto-merge").and_then(Value::as_bool) == Some(true)
}

/// True if an element ends some time.
fn ends(element: &Listed) -> bool {
    ["timeout", "expires"].iter().any(|name| property(&element.value, name).is_some())
}

/// The one part of a key.
fn of(element: &Listed) -> Interval {
    element.key.first().copied().unwrap_or(Interval { low: 0, high: 0 })
}
