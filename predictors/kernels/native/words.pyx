# cython: language_level=3, boundscheck=True, wraparound=False, initializedcheck=True, cdivision=True, nonecheck=True, auto_pickle=False
"""The words of a text of `predictors.kernels.reference.words`, compiled. See there for what it computes."""

from predictors.kernels.reference import words as reference

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM
from cpython.unicode cimport PyUnicode_DATA, PyUnicode_KIND, PyUnicode_READ

from predictors.kernels.native.source cimport HEADWAY_SOURCE

cdef extern from *:
    """
    /* An integer below 65536. */
    static CYTHON_INLINE long headway_id(PyObject *value) {
    #if PY_VERSION_HEX < 0x030C0000
        if (PyLong_CheckExact(value) && Py_SIZE(value) == 1) return ((PyLongObject *)value)->ob_digit[0];
    #endif
        return PyLong_AsLong(value);
    }
    """
    long headway_id(PyObject *value) except? -1

SOURCE = HEADWAY_SOURCE.decode()

cdef const unsigned char *SIXTY_FOUR = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

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
