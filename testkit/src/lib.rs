//! Fixtures, oracles, and the tests that compare platter with Linux and its tools.
