//! What a check finds, collected.

use std::ops::ControlFlow;

use platter_vfs::{CheckSink, Finding, Severity};

/// The findings of a check.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// The texts of those that are more than a notice.
    #[must_use]
    pub fn errors(&self) -> Vec<String> {
        self.texts(|severity| severity != Severity::Notice)
    }

    /// The texts of the notices.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        self.texts(|severity| severity == Severity::Notice)
    }

    fn texts(&self, is_one: impl Fn(Severity) -> bool) -> Vec<String> {
        let found = self.0.iter().filter(|it| is_one(it.severity));
        found
            .map(|finding| finding.corruption.to_string())
            .collect()
    }
}

impl CheckSink for Findings {
    fn finding(&mut self, finding: Finding) -> ControlFlow<()> {
        self.0.push(finding);
        ControlFlow::Continue(())
    }
}
