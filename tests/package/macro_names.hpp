// Names that headers of other libraries define as macros. No mhla header may use one. min and max
// are left out, because core/arch.hpp refuses them.

// <windows.h>
#define ABSOLUTE 1
#define CALLBACK
#define CONST const
#define DELETE (0x00010000L)
#define DIFFERENCE 11
#define ERROR 0
#define FALSE 0
#define FAR
#define GetMessage GetMessageW
#define GetObject GetObjectW
#define IGNORE 0
#define IN
#define INFINITE 0xFFFFFFFF
#define NEAR
#define NO_ERROR 0L
#define OPAQUE 2
#define OPTIONAL
#define OUT
#define RELATIVE 2
#define STRICT 1
#define TRANSPARENT 1
#define TRUE 1
#define VOID void
#define Yield()
#define cdecl
#define far
#define hyper long long
#define interface struct
#define near
#define pascal
#define small char

// Qt
#define emit
#define forever for (;;)
#define foreach(variable, container) for (variable : container)
#define signals public
#define slots

// X11
#define Above 0
#define Always 2
#define Below 1
#define Bool int
#define Complex 0
#define Convex 2
#define CurrentTime 0L
#define False 0
#define FocusIn 9
#define KeyPress 2
#define None 0L
#define Status int
#define Success 0
#define True 1
#define Unsorted 0

// <complex.h>, <termios.h>
#define B0 0
#define B50 1
#define I _Complex_I
