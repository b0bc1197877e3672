#define PK_BYTES 16
#define PK_NAMESPACE pk_baseline
#include "kernel.inc"
