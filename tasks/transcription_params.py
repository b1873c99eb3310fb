from tasks.config.transcription import *  # noqa
