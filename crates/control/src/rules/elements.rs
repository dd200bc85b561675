//! Changes of sets while a ruleset runs.

use std::time::Duration;

use axum::body::Bytes;
use engine::{ChangeElementsError, Gateway, LoadRulesError, PrepareRulesError};
use ruleset::{
    Contents, Document, DocumentError, ElementChange, ElementProblem, NamedElements, Set, SetId,
    listing,
};

use super::{RuleBook, live};
use crate::refusal::Refused;
use crate::routes::unresponsive;
use crate::schema::{ChangeElements, NotKept};

/// The remedy for elements that are wrong.
const CORRECT: &str = "correct them: none of the elements has changed";

/// Changes elements of a set, and returns how many. The ruleset comes back if its document changes.
///
/// # Errors
/// [`Refused`] with every element that is wrong; nothing changes.
pub(crate) fn change_elements(
    book: &RuleBook,
    gateway: &Gateway,
    wanted: &ChangeElements,
) -> Result<(usize, Option<RuleBook>), Refused> {
    let ChangeElements { family, table, set, change, elements } = wanted;
    let change = match change.as_str() {
        "add" => ElementChange::Add,
        "delete" => ElementChange::Delete,
        "flush" => ElementChange::Flush,
        other => {
            let what = format!("{other:?} is no change of elements");
            return Err(Refused::bad_request("change", what, "it is add, delete or flush"));
        }
    };
    let place = [family.as_str(), table, set];
    let contents = Contents::find(book.document(), place).map_err(|what| {
        let what = format!("set {}: {what}", place.join(" "));
        Refused::bad_request("set", what, "change it in its file, and load that")
    })?;
    let Some(mut contents) = contents else {
        let what = format!("the ruleset has no set {}", place.join(" "));
        return Err(Refused::bad_request("set", what, "`stateway rules list` shows the sets"));
    };
    let declared = book.ruleset().set_ids().find(|(_, set)| is_named(set, place));
    let changing = declared.filter(|(_, set)| set.changes_with_packets());
    if let Some((id, declared)) = changing {
        let named = NamedElements::read(change, elements, declared).map_err(wrong)?;
        return change_filled(gateway, id, &named).map(|changed| (changed, None));
    }
    let view = gateway.rules().map_err(unresponsive)?;
    let age = view.map(|view| view.age).unwrap_or_default();
    let changed = contents.change(change, elements, age).map_err(wrong)?;
    if changed == 0 {
        return Ok((0, None));
    }
    let changed_book = book.with(&contents)?;
    let goes_on = gateway.go_on_with_elements(changed_book.ruleset().clone());
    goes_on.map_err(|error| match error {
        // Rules that packets meet only now ask for something that the gateway does not do.
        ChangeElementsError::Rules(LoadRulesError::Prepare(PrepareRulesError::Unsupported(
            all,
        ))) => {
            let texts: Vec<String> = all.iter().map(ToString::to_string).collect();
            Refused::bad_request("elements", texts.join("; "), CORRECT)
        }
        ChangeElementsError::Rules(error) => {
            Refused::conflict("rules", error, "no element has changed; see the log of the gateway")
        }
        error @ ChangeElementsError::Exchanged => {
            Refused::conflict("elements", error, "load the whole ruleset with them")
        }
    })?;
    Ok((changed, Some(changed_book)))
}

fn change_filled(gateway: &Gateway, set: SetId, named: &NamedElements) -> Result<usize, Refused> {
    let changed = gateway
        .change_elements(set, named)
        .ok_or_else(|| Refused::conflict("rules", ChangeElementsError::Exchanged, "try again"))?;
    changed.map_err(wrong)
}

fn is_named(set: &Set, [family, table, name]: [&str; 3]) -> bool {
    set.family.name() == family && set.table == table && set.name.as_deref() == Some(name)
}

fn wrong(problems: Vec<ElementProblem>) -> Refused {
    let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
    Refused::bad_request("elements", texts.join("; "), CORRECT)
}

impl RuleBook {
    /// The ruleset with the elements that its sets have now; `None` if it has them already.
    ///
    /// # Errors
    /// The text says why they are not known or too much.
    pub(super) fn with_current_elements(&self, gateway: &Gateway) -> Result<Option<Self>, String> {
        let view = gateway.rules().map_err(|error| error.to_string())?;
        let Some(view) = view else { return Ok(None) };
        let document = listing::with_live_elements(&self.document, &self.program(), &live(&view));
        self.with_other(document)
    }

    /// The ruleset when its timed elements are closer to their end by `age`; `None` if it has none.
    ///
    /// # Errors
    /// The text says why it can not be read again.
    pub(super) fn with_age(&self, age: Duration) -> Result<Option<Self>, String> {
        self.with_other(listing::with_age(&self.document, &self.ruleset, age))
    }

    fn with_other(
        &self,
        document: Result<Option<Document<Vec<u8>>>, DocumentError>,
    ) -> Result<Option<Self>, String> {
        let document = document.map_err(|error| error.to_string())?;
        document.map(|document| self.with_document(&document)).transpose()
    }

    /// The ruleset with the elements that this document has. It has the same rules and sets.
    ///
    /// # Errors
    /// A text for people: the document is no ruleset.
    pub fn with_elements_of(&self, document: &serde_json::Value) -> Result<Self, String> {
        let document = Document::read(document.to_string().into_bytes());
        document.map_err(|error| error.to_string()).and_then(|it| self.with_document(&it))
    }

    /// The ruleset with other elements in a set.
    fn with(&self, contents: &Contents) -> Result<Self, Refused> {
        let document = contents.put_into(&self.document).map_err(|error| error.to_string());
        let book = document.and_then(|document| self.with_document(&document));
        book.map_err(|what| Refused::bad_request("elements", what, CORRECT))
    }

    /// The ruleset with a document that differs in elements only.
    fn with_document(&self, document: &Document<Vec<u8>>) -> Result<Self, String> {
        let book = Self::read(document.text().clone(), self.import, self.options.seed);
        let book = book.map_err(|error| error.to_string())?;
        let origin = Some(self.origin.clone().unwrap_or_else(|| self.document.clone()));
        // Elements do not change the form of a table.
        let (file, of_iptables) = (self.file.clone(), self.of_iptables.clone());
        Ok(Self { file, origin, of_iptables, ..book })
    }
}

/// The sets whose elements a new ruleset keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptSets {
    /// All of them.
    All,
    /// Those that no rule changes. The elements of the others pass to a new process by themselves.
    Fixed,
}

/// A new ruleset whose sets keep the elements that the sets of the same place and type have got
/// since they were loaded, and the sets of which some are not kept.
///
/// # Errors
/// [`Refused`].
pub(crate) fn with_kept(
    new: RuleBook,
    running: &RuleBook,
    gateway: &Gateway,
    sets: KeptSets,
) -> Result<(RuleBook, Vec<NotKept>), Refused> {
    let defect = |error: &dyn ToString| Refused::defect(error.to_string());
    let Some(view) = gateway.rules().map_err(unresponsive)? else { return Ok((new, Vec::new())) };
    let listed = listing::with_live(running.document.value(), &running.program(), &live(&view));
    let listed = Document::read(listed.to_string().into_bytes()).map_err(|it| defect(&it))?;
    let loaded = running.origin.as_ref().unwrap_or(&running.document);
    let mut merged: Option<Document<Bytes>> = None;
    let mut not_kept = Vec::new();
    for set in running.ruleset.sets() {
        let is_meant = sets == KeptSets::All || !set.dynamic;
        let Some(name) = set.name.as_deref().filter(|_| is_meant) else { continue };
        let place = [set.family.name(), set.table.as_str(), name];
        let Ok(Some(more)) = Contents::find(&listed, place) else { continue };
        let more = match Contents::find(loaded, place) {
            Ok(Some(before)) => more.since(&before),
            _ => more,
        };
        let elements = more.elements().len();
        if elements == 0 {
            continue;
        }
        let mut tell_not_kept = |elements: usize, why: String| {
            let [family, table, set] = place.map(str::to_owned);
            not_kept.push(NotKept { family, table, set, elements, why });
        };
        let target = merged.as_ref().unwrap_or(&new.document);
        let contents = Contents::find(target, place);
        let contents = contents.and_then(|it| it.ok_or("the new ruleset has no such set".into()));
        match contents.and_then(|mut it| it.keep(&more).map(|kept| (it, kept))) {
            Ok((contents, kept)) => {
                if kept.overlapping > 0 {
                    let why = "elements of the new ruleset overlap with them";
                    tell_not_kept(kept.overlapping, why.to_owned());
                }
                if kept.added == 0 {
                    continue;
                }
                let document = contents.put_into(target).map_err(|it| defect(&it))?;
                let text = Bytes::from(document.text().clone());
                merged = Some(Document::read(text).map_err(|it| defect(&it))?);
            }
            Err(why) => tell_not_kept(elements, why),
        }
    }
    let Some(merged) = merged else { return Ok((new, not_kept)) };
    let book = RuleBook::read(merged.text().clone(), new.import, new.options.seed);
    let book = book.map_err(|error| {
        let todo = "load it without keeping elements";
        Refused::bad_request("rules", format!("with the kept elements: {error}"), todo)
    })?;
    Ok((RuleBook { origin: Some(new.document), ..book }, not_kept))
}
