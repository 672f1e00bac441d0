/* Entry points of the aclnn operators, x86_64 (System V calling convention).
 *
 * The generated file that includes this one says OPERATOR aclnnX, <offset of its row in vn_signatures> for each
 * operator. First half: the six registers for whole numbers, the low halves of the eight for real numbers and the
 * address of the stack arguments go to vn_operator_prepare as they are. Second half: the row goes before the four
 * arguments.
 */
    .text
    .p2align 4
    .type vn_prepare_entry, @function
vn_prepare_entry:                       /* row in %r11, which is nobody's at a call */
    .cfi_startproc
    pushq   %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq    %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq    $112, %rsp
    movq    %rdi, 0(%rsp)
    movq    %rsi, 8(%rsp)
    movq    %rdx, 16(%rsp)
    movq    %rcx, 24(%rsp)
    movq    %r8, 32(%rsp)
    movq    %r9, 40(%rsp)
    movsd   %xmm0, 48(%rsp)
    movsd   %xmm1, 56(%rsp)
    movsd   %xmm2, 64(%rsp)
    movsd   %xmm3, 72(%rsp)
    movsd   %xmm4, 80(%rsp)
    movsd   %xmm5, 88(%rsp)
    movsd   %xmm6, 96(%rsp)
    movsd   %xmm7, 104(%rsp)
    movq    %r11, %rdi
    movq    %rsp, %rsi
    leaq    48(%rsp), %rdx
    leaq    16(%rbp), %rcx              /* behind the saved %rbp and the return address */
    call    vn_operator_prepare@PLT
    leave
    .cfi_def_cfa %rsp, 8
    ret
    .cfi_endproc
    .size vn_prepare_entry, . - vn_prepare_entry

    .macro OPERATOR name, offset
    .globl  \name\()GetWorkspaceSize
    .type   \name\()GetWorkspaceSize, @function
\name\()GetWorkspaceSize:
    movq    vn_signatures@GOTPCREL(%rip), %r11
    addq    $\offset, %r11
    jmp     vn_prepare_entry
    .size   \name\()GetWorkspaceSize, . - \name\()GetWorkspaceSize

    .globl  \name
    .type   \name, @function
\name:
    movq    %rcx, %r8
    movq    %rdx, %rcx
    movq    %rsi, %rdx
    movq    %rdi, %rsi
    movq    vn_signatures@GOTPCREL(%rip), %rdi
    addq    $\offset, %rdi
    jmp     vn_operator_launch@PLT
    .size   \name, . - \name
    .endm

    .section .note.GNU-stack, "", @progbits
    .text
