/* msl_macros.h - from here on Metal's spellings mean msl_core.hpp's. The last thing that a target includes.
 *
 * Address spaces are no macros: msl.py takes them out, since CUDA's own attributes are spelled with some of them. */
#pragma once
#define exp msl_exp
#define exp2 msl_exp2
#define log msl_log
#define log2 msl_log2
#define sqrt msl_sqrt
#define rsqrt msl_rsqrt
#define sin msl_sin
#define cos msl_cos
#define tanh msl_tanh
#define fabs msl_fabs
#define floor msl_floor
#define ceil msl_ceil
#define round msl_round
#define rint msl_rint
#define trunc msl_trunc
#define pow msl_pow
#define fma msl_fma
#define ldexp msl_ldexp
#define abs msl_abs
#define min msl_min
#define max msl_max
#define clamp msl_clamp
#define dot msl_dot
#define isnan msl_isnan
#define isinf msl_isinf
#define isfinite msl_isfinite
#define select msl_select
#define all msl_all
#define any msl_any
#define popcount msl_popcount
#undef INFINITY
#define INFINITY MSL_INFINITY
#define float2 msl_float2
#define float3 msl_float3
#define float4 msl_float4
#define half2 msl_half2
#define half3 msl_half3
#define half4 msl_half4
#define int2 msl_int2
#define int3 msl_int3
#define int4 msl_int4
#define uint2 msl_uint2
#define uint3 msl_uint3
#define uint4 msl_uint4
#define short2 msl_short2
#define short4 msl_short4
#define ushort2 msl_ushort2
#define ushort3 msl_ushort3
#define ushort4 msl_ushort4
#define char2 msl_char2
#define char4 msl_char4
#define uchar2 msl_uchar2
#define uchar4 msl_uchar4
#define ulong2 msl_ulong2
#define long2 msl_long2
#define bool2 msl_bool2
#define bool4 msl_bool4
#pragma GCC poison double
