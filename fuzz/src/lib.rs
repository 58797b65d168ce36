//! Fuzz targets: each is a function of bytes that must return.
