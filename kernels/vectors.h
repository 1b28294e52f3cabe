/* VEC floats between registers and global memory in one access, and the cache hints LOAD and STORE: knows
   both languages, and no kernel. A kernel defines VEC, LOAD and STORE before it includes this file.

     LOAD   plain    through all caches; the kernel must not write what it reads
            stream   first to leave the caches: read once
            bypass   leave nothing in the L1 cache, and fetch 256 bytes at a time into the L2 cache
     STORE  plain
            stream   first to leave the caches: nobody will read it soon

   OpenCL C has no cache hints. */
#ifndef VECTORS_H
#define VECTORS_H

#include "dialect.h"

#if VEC != 1 && VEC != 2 && VEC != 4
#error "VEC must be 1, 2 or 4"
#endif

/* In CUDA the plain accesses are spelled out too. float4 is a structure there, which the compiler may take
   apart and fail to put together again, and then there are four accesses. */
#if defined(__OPENCL_VERSION__) || defined(__HIP__)
#define GET(p) (*(p))
#define GET2(p) LD2(p)
#define GET4(p) LD4(p)
#elif LOAD == LOAD_plain
#define GET(p) __ldg(p)
#define GET2(p) __ldg((const float2*)(p))
#define GET4(p) __ldg((const float4*)(p))
#elif LOAD == LOAD_stream
#define GET(p) LD_STREAM(p)
#define GET2(p) LD2_STREAM(p)
#define GET4(p) LD4_STREAM(p)
#else
/* Neither volatile nor a clobber: nobody writes what is read this way, so the compiler may move it. */
#define BYPASS "ld.global.nc.L1::no_allocate.L2::256B"
DEVICE float GET(const float* p)
{
    float v;
    asm(BYPASS ".f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}
DEVICE float2 GET2(const float* p)
{
    float2 v;
    asm(BYPASS ".v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
    return v;
}
DEVICE float4 GET4(const float* p)
{
    float4 v;
    asm(BYPASS ".v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
#endif

#if defined(__OPENCL_VERSION__) || defined(__HIP__)
#define PUT(p, v) (*(p) = (v))
#define PUT2(p, v) ST2(p, v)
#define PUT4(p, v) ST4(p, v)
#elif STORE == STORE_plain
#define PUT(p, v) (*(p) = (v))
DEVICE void PUT2(float* p, float2 v)
{
    asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(v.x), "f"(v.y) : "memory");
}
DEVICE void PUT4(float* p, float4 v)
{
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
#else
#define PUT(p, v) __stcs(p, v)
#define PUT2(p, v) __stcs((float2*)(p), v)
#define PUT4(p, v) __stcs((float4*)(p), v)
#endif

/* Whether p may be accessed VEC floats at a time. */
#define IS_ALIGNED(p) ((size_t)(p) % (4 * VEC) == 0)

/* VEC floats in one load, or zeros. */
DEVICE void load_vector(float* to, GLOBAL const float* from, int inside)
{
#if VEC == 4
    const float4 v = inside ? GET4(from) : MAKE4(0.0f, 0.0f, 0.0f, 0.0f);
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
#elif VEC == 2
    const float2 v = inside ? GET2(from) : MAKE2(0.0f, 0.0f);
    to[0] = v.x, to[1] = v.y;
#else
    to[0] = inside ? GET(from) : 0.0f;
#endif
}

DEVICE void store_vector(GLOBAL float* to, const float* from)
{
#if VEC == 4
    PUT4(to, MAKE4(from[0], from[1], from[2], from[3]));
#elif VEC == 2
    PUT2(to, MAKE2(from[0], from[1]));
#else
    PUT(to, from[0]);
#endif
}

#endif
