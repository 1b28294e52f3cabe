/* y = alpha A x + beta y in float32, A m x n and stored by columns, which is n rows of m floats, any size: knows that
   this is the product of sgemm_slim.cu for a C of one column, whose text it takes.

   Dimensions to 2^30. When beta is 0, y is never read and may hold anything; when n is 0, neither A nor x is.

   A thread owns VEC neighbouring elements of y, LINES times, and TEAM threads side by side a strip of A. The teams of
   a block walk down the strip, UNROLL rows each at a time. GRIDK blocks share a strip, where strips are few. The
   parameters are those of sgemm_slim.cu, as are the arguments: its B is x, its C is y, its n is 1 and its k is n.

   VIEW is the same for arrays that are part of others: rows of A lie lda floats apart, elements of x and y ldb and
   ldc. */

#define sgemm gemv_columns
#define NARROW_columns 0
#define NARROW_rows 1
#define NARROW NARROW_columns
#define FEW 1
#define STAGED 0
#define TRANS_A 1
/* Without VIEW elements of x are neighbours, which a compiler knows of the row that x is when it is transposed. */
#define TRANS_B (!VIEW)
/* As it was tuned. int would do: sgemm_slim.cu counts rows in 64 bits. */
#define PITCH i64
#ifndef TEAM
#define TEAM 8
#endif

#include "sgemm_slim.cu"
