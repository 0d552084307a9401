//! (in work)
pub struct RealNetlink;
