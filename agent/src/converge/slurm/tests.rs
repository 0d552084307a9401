//! Jobs on a login host that is a folder, with programs of Slurm that the tests write.
