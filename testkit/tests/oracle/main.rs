//! Platter beside Linux and its tools, over every fixture.

mod fixtures;
