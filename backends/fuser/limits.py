"""What the cost model is made of."""

MULTIPROCESSORS = 132  # of an H100; others have work enough for as many programs as well
PROGRAMS = 4 * MULTIPROCESSORS
FEWEST_ROWS = 64  # with fewer rows, each of which is long, a row is shared by several programs
SHORT_ROW, SHORT_COLUMN = 8192, 1024  # that are one program's, however few there are
ONE_PROGRAM = 16384  # elements that are not worth a second kernel
LONGEST_WHOLE_ROW = 16384  # elements that a program holds in registers
SHARED_CHUNK = 2048  # elements: programs share a row in multiples of it
SHARED_COLUMN = 128  # and a column in multiples of this: what a tile of 16 columns has of each
VERY_LONG_ROW = 65536  # one that is shared by programs that fill the device, if it is walked twice
UNROLLED = 8  # values of a reduction that is written out, if they lie apart
INTERLEAVED = 64  # elements next to each other, below which a long row is not written by the program that reads it
LONG_PIECE = 256  # elements next to each other, at least, of a piece of a result that shares what it reads, but no sums
SHARES_OF_INTERLEAVED = 4  # programs, at least

# Found by trying each on an H100, with the patterns of `aotkit bench patterns`.
FLAT = 1024  # elements of a program where nothing is reduced
TILE = 2048  # of a program of short rows, or of columns
CHUNK = 8192  # of a long row
SIDE = 64  # of a tile that is read along rows and along columns
NEIGHBOURS = 8  # at least, of rows that are next to each other in memory: 32 bytes of float32 are read at a time
MOST_WARPS = 16  # of a program
# Elements of a thread. The fewest: sums of what 2112 programs have added up, [2112, 1024], on an H200: 11 us, not 18.
FEWEST, FEW, SOME, MANY = 4, 8, 16, 32
RESIDENT = 16  # warps on a multiprocessor that add up rows, with copies under way; without, twice as many
STAGES = 3  # rows, or chunks of rows, that are on their way at a time, where copies are of whole words
UNDER_WAY = 96 * 1024  # bytes of rows at most, in shared memory: what any GPU since Ampere has
CHUNKS_UNDER_WAY = 32 * 1024  # bytes of chunks, so that other programs have room
HELD = 48 * 1024  # elements of a row that is read and of sums over rows, at most, which a program has in registers
READ_AHEAD = 160  # bytes of a thread that are read before the first reduction of a row
SECTOR = 32  # bytes that are moved at a time
VECTOR = 16  # bytes that a thread reads at a time
WORD = 8  # elements
NARROWEST = 16  # at least, elements next to each other in a tile that is tried instead of another
WIDE = 64  # at least, elements of a row in a tile of rows
