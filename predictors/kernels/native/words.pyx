# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The words of a text of `predictors.kernels.reference.words`, compiled. See there for what it computes."""

from predictors.kernels.reference import words as reference

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF, Py_XDECREF, Py_XINCREF, PyObject
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_1BYTE_KIND, PyUnicode_2BYTE_KIND, PyUnicode_DATA, PyUnicode_KIND

from predictors.kernels.native.arithmetic cimport headway_id
from predictors.kernels.native.source cimport HEADWAY_SOURCE

SOURCE = HEADWAY_SOURCE.decode()

cdef const unsigned char *SIXTY_FOUR = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

#: A run of letters or of digits is one token, a sign is one by itself, a space is none.
cdef enum Kind:
    SPACE, SIGN, DIGIT, LETTER

#: Ids whose objects are kept: prompts have many words in common.
cdef enum:
    KEPT = 1024

ctypedef fused Sign:
    unsigned char
    unsigned short
    Py_UCS4

cdef Py_ssize_t MAX_WORD_CHARS = reference.MAX_WORD_CHARS
cdef object word_id = reference.word_id
cdef unsigned int[256] CRC
cdef Kind[128] KINDS
cdef unsigned char[128] SMALL  # of a letter, else 0
cdef unsigned short[128] SIGN_IDS, NUMBER_IDS  # of single signs; of numbers of so many digits
cdef bint[128] USUAL
cdef PyObject *OBJECTS[KEPT]
cdef unsigned short[KEPT] IDS  # of these objects


cdef Kind kind_of(Py_UCS4 sign) noexcept:
    if sign.isdecimal():
        return DIGIT
    if sign.isalnum():
        return LETTER
    return SPACE if sign.isspace() and sign != u"\n" else SIGN


cdef inline unsigned int with_sign(unsigned int crc, unsigned int sign) noexcept:
    return CRC[(crc ^ sign) & 0xFF] ^ (crc >> 8)


cdef unsigned short number_id(Py_ssize_t digits) except? 0:
    cdef unsigned int crc = 0xFFFFFFFFu
    cdef unsigned char sign
    for sign in b"#%d" % digits:
        crc = with_sign(crc, sign)
    return ~crc & 0xFFFF


cdef int make_tables() except -1:
    cdef unsigned int value
    cdef int at, bit
    for at in range(256):
        value = at
        for bit in range(8):
            value = (value >> 1) ^ (0xEDB88320u if value & 1 else 0)
        CRC[at] = value
    for at in range(128):
        KINDS[at] = kind_of(at)
        SMALL[at] = ord(chr(at).lower()) if KINDS[at] == LETTER else 0
        SIGN_IDS[at], NUMBER_IDS[at] = ~with_sign(0xFFFFFFFFu, at) & 0xFFFF, number_id(at)
        USUAL[at] = at in reference.USUAL_SIGNS
    return 0


make_tables()


cdef Py_ssize_t read_signs(const Sign *signs, Py_ssize_t size, str text, unsigned short *ids, int *counts) except -1:
    """Fill in the ids of the tokens, of which there are as many as is returned, and the counts. After the signs comes 0."""
    cdef Py_ssize_t at = 0, start, limit, count = 0
    cdef int digits = 0, usual = 0, capitals = 0, beyond = 0, questions = 0
    cdef unsigned int crc, small
    cdef Py_UCS4 sign
    cdef Kind kind
    cdef bint plain
    while at < size:
        sign = signs[at]
        kind = KINDS[sign] if sign < 128 else kind_of(sign)
        start = at
        if kind == LETTER:
            crc, plain, limit = 0xFFFFFFFFu, True, start + MAX_WORD_CHARS
            while True:  # to the end of these letters
                if sign < 128:
                    small = SMALL[sign]
                    if not small:
                        break
                    capitals += small != sign
                    if at < limit:
                        crc = with_sign(crc, small)
                elif kind_of(sign) == LETTER:
                    plain = False
                    beyond += 1
                    capitals += 1 if sign.isupper() else 0
                else:
                    break
                at += 1
                sign = signs[at]
            ids[count] = ~crc & 0xFFFF if plain else <unsigned short>word_id(text[start:at])
            count += 1
            continue
        if kind == DIGIT:
            while sign < 128 and KINDS[sign] == DIGIT or sign >= 128 and kind_of(sign) == DIGIT:
                digits += sign < 128
                beyond += sign >= 128
                at += 1
                sign = signs[at]
            ids[count] = NUMBER_IDS[at - start] if at - start < 128 else number_id(at - start)
            count += 1
            continue
        at += 1
        if sign >= 128:
            beyond += 1
            capitals += 1 if sign.isupper() else 0
            if kind == SIGN:
                ids[count] = word_id(text[start:at])
                count += 1
        elif kind == SIGN:
            ids[count] = SIGN_IDS[sign]
            count += 1
            usual += USUAL[sign]
            questions += sign == c"?"
    counts[0], counts[1], counts[2], counts[3], counts[4] = digits, usual, capitals, beyond, questions
    return count


cdef inline PyObject *object_of(unsigned short number) except NULL:
    """Its object, borrowed until the next call."""
    cdef Py_ssize_t at = number % KEPT
    cdef PyObject *before = OBJECTS[at]
    if before == NULL or IDS[at] != number:
        made = <object>number
        Py_INCREF(made)
        OBJECTS[at], IDS[at] = <PyObject *>made, number
        Py_XDECREF(before)
    return OBJECTS[at]


def read_words(str text not None):
    cdef Py_ssize_t size = len(text), count, at
    cdef int[5] counts = [0, 0, 0, 0, 0]
    cdef int form = PyUnicode_KIND(text)
    cdef void *signs = PyUnicode_DATA(text)
    cdef PyObject *word
    cdef unsigned short *ids = <unsigned short *>PyMem_Malloc(size * sizeof(unsigned short) + 1)
    if ids == NULL:
        raise MemoryError
    try:
        if form == PyUnicode_1BYTE_KIND:
            count = read_signs(<unsigned char *>signs, size, text, ids, counts)
        elif form == PyUnicode_2BYTE_KIND:
            count = read_signs(<unsigned short *>signs, size, text, ids, counts)
        else:
            count = read_signs(<Py_UCS4 *>signs, size, text, ids, counts)
        words = PyTuple_New(count)
        for at in range(count):
            word = object_of(ids[at])
            Py_XINCREF(word)
            PyTuple_SET_ITEM(words, at, <object>word)
    finally:
        PyMem_Free(ids)
    return words, (counts[0], counts[1], counts[2], counts[3], counts[4])


def ids_as_base64(tuple head not None, tuple tail not None):
    cdef Py_ssize_t first = len(head), size = 2 * (first + len(tail)), at, left
    cdef unsigned char *data = <unsigned char *>PyMem_Malloc(size + 3)
    if data == NULL:
        raise MemoryError
    cdef bytes found
    cdef char *into
    cdef unsigned int each
    try:
        for at in range(size // 2):
            each = headway_id(PyTuple_GET_ITEM(head, at) if at < first else PyTuple_GET_ITEM(tail, at - first))
            data[2 * at], data[2 * at + 1] = each & 0xFF, (each >> 8) & 0xFF
        data[size] = data[size + 1] = 0
        found = PyBytes_FromStringAndSize(NULL, (size + 2) // 3 * 4)
        into = found
        for at in range(0, size, 3):
            each = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            into[0], into[1] = SIXTY_FOUR[each >> 18], SIXTY_FOUR[(each >> 12) & 63]
            into[2], into[3] = SIXTY_FOUR[(each >> 6) & 63], SIXTY_FOUR[each & 63]
            into += 4
        left = (3 - size % 3) % 3
        for at in range(1, left + 1):
            into[-at] = c"="
        return found.decode("ascii")
    finally:
        PyMem_Free(data)
