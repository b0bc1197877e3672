#define PK_BYTES 32
#define PK_NAMESPACE pk_avx2
#include "kernel.inc"
