//! Families with the same labels, filled row by row.

use schema::metrics::{FamilyInfo, StateFamily};

/// Values of the labels, and one value for each family: `None` if it is not known.
pub(super) type MetricRow<'a, const N: usize, const M: usize> = ([&'a str; N], [Option<f64>; M]);

/// Fills families from rows, of which no two have the same labels. A family without samples is among them.
pub(super) fn fill<'a, const N: usize, const M: usize>(
    infos: &'static [FamilyInfo; M],
    rows: impl IntoIterator<Item = MetricRow<'a, N, M>>,
) -> Vec<StateFamily> {
    let mut families: Vec<StateFamily> = infos.iter().map(StateFamily::new).collect();
    for (labels, values) in rows {
        for (family, value) in families.iter_mut().zip(values) {
            if let Some(value) = value {
                family.add(labels, value);
            }
        }
    }
    families
}
