"""Pictures in files: images of all kinds, DICOM, NIfTI, and the tables that say what they show."""
