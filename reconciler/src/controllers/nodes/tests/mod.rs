//! Tables for the nodes plan, one file per part.

mod conditions;
mod gone;
mod subnets;
