"""Reading and writing of artefacts that several stages share. Stages are not imported here."""
