/* Memory of the module: a bump allocator over memory.grow, and loads and compares that may read past the end.
 *
 * Nothing is freed: an instance lives as long as one file is read. Buffers that outgrow themselves double, so
 * what they leave behind is at most as large as they are. */
#pragma once
#include <stdint.h>
#include <wasm_simd128.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

#define EXPORT(name) __attribute__((export_name(#name)))
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline)) /* what is compiled once is compiled sooner */
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum { WASM_PAGE = 65536, GROW_PAGES = 16 };

extern u8 __heap_base;
static u32 heap_top, heap_end;

/* Return `bytes` of fresh memory at a multiple of 16, or 0 when there is no more. */
static void *allocate(u64 bytes) {
    if (!heap_top) {
        heap_top = ((u32)&__heap_base + 15) & ~15u;
        heap_end = (u32)__builtin_wasm_memory_size(0) * WASM_PAGE;
    }
    u64 top = (u64)heap_top + ((bytes + 15) & ~(u64)15);
    if (top > 0xfff00000u) return 0;
    if (top > heap_end) {
        u32 pages = (u32)((top - heap_end + WASM_PAGE - 1) / WASM_PAGE);
        if (pages < GROW_PAGES) pages = GROW_PAGES;
        if (__builtin_wasm_memory_grow(0, pages) == (unsigned long)-1) return 0;
        heap_end += pages * WASM_PAGE;
    }
    void *fresh = (void *)heap_top;
    heap_top = (u32)top;
    return fresh;
}

/* Return a copy of `old` with room for `bytes`, or 0 when there is no more memory. */
static void *enlarge(const void *old, u32 old_bytes, u64 bytes) {
    void *fresh = allocate(bytes);
    if (fresh && old_bytes) __builtin_memcpy(fresh, old, old_bytes);
    return fresh;
}

/* Four bytes as load32 gives them. */
#define WORD(a, b, c, d) ((u32)(a) | (u32)(b) << 8 | (u32)(c) << 16 | (u32)(d) << 24)

INLINE u32 load32(const u8 *p) { u32 w; __builtin_memcpy(&w, p, 4); return w; }
INLINE u64 load64(const u8 *p) { u64 w; __builtin_memcpy(&w, p, 8); return w; }
INLINE u64 first_bytes(u64 word, u32 count) { return count >= 8 ? word : word & (((u64)1 << (8 * count)) - 1); }

/* Return whether two texts of equal length are equal; both must be readable 16 bytes past their end. */
INLINE int same_bytes(const u8 *a, const u8 *b, u32 length) {
    if (length < 8) return !first_bytes(load64(a) ^ load64(b), length);
    if (length < 16) return !((load64(a) ^ load64(b)) | (load64(a + length - 8) ^ load64(b + length - 8)));
    u32 last = length - 16;
    for (u32 i = 0; i < last; i += 16) {
        v128_t differ = wasm_v128_xor(wasm_v128_load(a + i), wasm_v128_load(b + i));
        if (wasm_v128_any_true(differ)) return 0;
    }
    return !wasm_v128_any_true(wasm_v128_xor(wasm_v128_load(a + last), wasm_v128_load(b + last)));
}
