/* Counts what one thread asks of CPython's object allocators. Built by `benchmarks.overhead.counting`, called through ctypes
   while the interpreter lock is held (PyDLL). */
#include <Python.h>

static unsigned long watched;
static unsigned long long allocations;
static PyMemAllocatorEx inner[2];

static void counted(void) {
    if (PyThread_get_thread_ident() == watched)
        allocations++;
}

static void *my_malloc(void *ctx, size_t size) {
    PyMemAllocatorEx *to = ctx;
    counted();
    return to->malloc(to->ctx, size);
}

static void *my_calloc(void *ctx, size_t count, size_t size) {
    PyMemAllocatorEx *to = ctx;
    counted();
    return to->calloc(to->ctx, count, size);
}

static void *my_realloc(void *ctx, void *memory, size_t size) {
    PyMemAllocatorEx *to = ctx;
    counted();
    return to->realloc(to->ctx, memory, size);
}

static void my_free(void *ctx, void *memory) {
    PyMemAllocatorEx *to = ctx;
    to->free(to->ctx, memory);
}

void start(void) {
    static const PyMemAllocatorDomain domains[2] = {PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ};
    watched = PyThread_get_thread_ident();
    allocations = 0;
    for (int i = 0; i < 2; i++) {
        PyMemAllocatorEx mine = {&inner[i], my_malloc, my_calloc, my_realloc, my_free};
        PyMem_GetAllocator(domains[i], &inner[i]);
        PyMem_SetAllocator(domains[i], &mine);
    }
}

unsigned long long stop(void) {
    PyMem_SetAllocator(PYMEM_DOMAIN_MEM, &inner[0]);
    PyMem_SetAllocator(PYMEM_DOMAIN_OBJ, &inner[1]);
    return allocations;
}
