#define PK_BYTES 64
#define PK_NAMESPACE pk_avx512
#include "kernel.inc"
