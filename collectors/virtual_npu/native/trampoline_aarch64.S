/* Entry points of the aclnn operators, aarch64 (AAPCS64).
 *
 * The generated file that includes this one says OPERATOR aclnnX, <offset of its row in vn_signatures> for each
 * operator. First half: x0-x7, the low halves of v0-v7 and the address of the stack arguments go to
 * vn_operator_prepare as they are. Second half: the row goes before the four arguments.
 */
    .text
    .p2align 4
    .type vn_prepare_entry, %function
vn_prepare_entry:                       /* row in x9, which is nobody's at a call */
    .cfi_startproc
    stp     x29, x30, [sp, #-144]!
    .cfi_def_cfa_offset 144
    .cfi_offset 29, -144
    .cfi_offset 30, -136
    mov     x29, sp
    stp     x0, x1, [sp, #16]
    stp     x2, x3, [sp, #32]
    stp     x4, x5, [sp, #48]
    stp     x6, x7, [sp, #64]
    stp     d0, d1, [sp, #80]
    stp     d2, d3, [sp, #96]
    stp     d4, d5, [sp, #112]
    stp     d6, d7, [sp, #128]
    mov     x0, x9
    add     x1, sp, #16
    add     x2, sp, #80
    add     x3, sp, #144                /* what was sp at the call */
    bl      vn_operator_prepare
    ldp     x29, x30, [sp], #144
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    ret
    .cfi_endproc
    .size vn_prepare_entry, . - vn_prepare_entry

    .macro OPERATOR name, offset
    .globl  \name\()GetWorkspaceSize
    .type   \name\()GetWorkspaceSize, %function
\name\()GetWorkspaceSize:
    adrp    x9, :got:vn_signatures
    ldr     x9, [x9, #:got_lo12:vn_signatures]
    movz    w10, #((\offset) & 0xffff)
    movk    w10, #((\offset) >> 16), lsl #16
    add     x9, x9, x10
    b       vn_prepare_entry
    .size   \name\()GetWorkspaceSize, . - \name\()GetWorkspaceSize

    .globl  \name
    .type   \name, %function
\name:
    mov     x4, x3
    mov     x3, x2
    mov     x2, x1
    mov     x1, x0
    adrp    x0, :got:vn_signatures
    ldr     x0, [x0, #:got_lo12:vn_signatures]
    movz    w9, #((\offset) & 0xffff)
    movk    w9, #((\offset) >> 16), lsl #16
    add     x0, x0, x9
    b       vn_operator_launch
    .size   \name, . - \name
    .endm

    .section .note.GNU-stack, "", %progbits
    .text
