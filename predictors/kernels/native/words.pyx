# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The words of a text of `predictors.kernels.reference.words`, compiled. See there for what it computes."""

from predictors.kernels.reference import words as reference

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND, PyUnicode_READ

from predictors.kernels.native.source cimport HEADWAY_SOURCE

SOURCE = HEADWAY_SOURCE.decode()

#: A run of letters or of digits is one token, a sign is one by itself, a space is none.
cdef enum Kind:
    SPACE, SIGN, DIGIT, LETTER

cdef Py_ssize_t MAX_WORD_CHARS = reference.MAX_WORD_CHARS
cdef object word_id = reference.word_id
cdef unsigned int[256] CRC
cdef Kind[128] KINDS
cdef bint[128] USUAL


cdef Kind kind_of(Py_UCS4 sign):
    if sign.isdecimal():
        return DIGIT
    if sign.isalnum():
        return LETTER
    return SPACE if sign.isspace() and sign != u"\n" else SIGN


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
        USUAL[at] = at in reference.USUAL_SIGNS
    return 0


make_tables()


cdef unsigned int number_id(Py_ssize_t digits) except? 0:
    cdef unsigned int crc = 0xFFFFFFFFu
    cdef unsigned char sign
    for sign in b"#%d" % digits:
        crc = CRC[(crc ^ sign) & 0xFF] ^ (crc >> 8)
    return ~crc & 0xFFFF


def read_words(str text not None):
    cdef list ids = []
    cdef Py_ssize_t at = 0, start = 0
    cdef int digits = 0, signs = 0, capitals = 0, beyond = 0, questions = 0
    cdef unsigned int crc = 0, sign
    cdef Py_UCS4 each
    cdef Kind kind, kind_before = SPACE
    cdef bint plain = True
    text += " "  # it ends the last token
    cdef Py_ssize_t size = len(text)
    cdef int form = PyUnicode_KIND(text)
    cdef void *signs_of = PyUnicode_DATA(text)
    while at < size:
        each = PyUnicode_READ(form, signs_of, at)
        sign = each
        kind = KINDS[sign] if sign < 128 else kind_of(each)
        if kind != kind_before or kind == SIGN:  # the token before ends here
            if kind_before == DIGIT:
                ids.append(number_id(at - start))
            elif kind_before != SPACE:
                ids.append(~crc & 0xFFFF if plain else word_id(text[start:at]))
            start, crc, plain, kind_before = at, 0xFFFFFFFFu, True, kind
        if sign >= 128:
            plain = False
            beyond += 1
            capitals += each.isupper()
        elif kind == LETTER:
            while True:  # to the end of these letters
                if sign <= c"Z":
                    capitals += 1
                    sign += 32
                if at - start < MAX_WORD_CHARS:
                    crc = CRC[(crc ^ sign) & 0xFF] ^ (crc >> 8)
                sign = PyUnicode_READ(form, signs_of, at + 1)  # there is always the space
                if sign >= 128 or KINDS[sign] != LETTER:
                    break
                at += 1
        elif kind == DIGIT:
            digits += 1
        elif kind == SIGN:
            crc = CRC[(crc ^ sign) & 0xFF] ^ (crc >> 8)
            if sign == c"?":
                questions += 1
            else:
                signs += USUAL[sign]
        at += 1
    return ids, (digits, signs, capitals, beyond, questions)


def ids_as_bytes(tuple ids not None):
    cdef bytes found = PyBytes_FromStringAndSize(NULL, 2 * len(ids))
    cdef char *into = found
    cdef unsigned short each
    for each in ids:
        into[0], into[1] = each & 0xFF, each >> 8
        into += 2
    return found
