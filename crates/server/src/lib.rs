//! HTTP in, HTTP out: routes, admission, writes, reads and watch streams over the cache.
