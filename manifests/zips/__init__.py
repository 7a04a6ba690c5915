"""ZIP archives (PKWARE APPNOTE 6.3): read from a file that nobody vouches for, and written as a stream."""

from __future__ import annotations

from manifests.zips.names import is_file_name as is_file_name
from manifests.zips.reader import Archive as Archive
from manifests.zips.reader import BadArchive as BadArchive
from manifests.zips.reader import Member as Member
from manifests.zips.reader import TooManyEntries as TooManyEntries
from manifests.zips.writer import zip_stream as zip_stream
