//! Tables for the nodes plan, a file for each of its parts.

mod conditions;
mod gone;
mod subnets;
