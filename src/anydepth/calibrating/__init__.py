"""What is measured ahead and kept beside a run: how long each depth takes on a machine, which drafts pay, how sure a
shallow exit must be."""
