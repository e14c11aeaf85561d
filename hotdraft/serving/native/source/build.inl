// What is compiled once for each instruction set, in its own namespace.
typedef int32_t Alias32 __attribute__((may_alias));
#include "vectors.inl"
#include "formats.inl"
#ifdef HD_BF16
#include "bytes.inl"
#endif
#ifdef HD_AMX
#include "matrix.inl"
#endif
#include "tiles.inl"
#include "worker.inl"
#include "attention.inl"
#include "states.inl"
#include "forward.inl"
