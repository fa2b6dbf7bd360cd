//! For tests only: contracts, history checks, fixtures.
