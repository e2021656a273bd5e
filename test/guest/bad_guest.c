/* What a guest must not do: shows that the trap sees it. */
#include <fenv.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

void call_all(void);
void call_all(void)
{
    const char text[] = "a guest speaks\n";

    (void)getenv("HOME");
    (void)setenv("GUEST_WAS_HERE", "1", 1);
    (void)setlocale(LC_NUMERIC, "C");
    (void)fesetround(FE_TONEAREST);
    (void)chdir(".");
    (void)umask(022);
    (void)signal(SIGUSR1, SIG_IGN);
    (void)sigaction(SIGUSR2, NULL, NULL);
    printf("%s%d\n", text, 1);
    fprintf(stderr, "%s%d\n", text, 2);
    if (write(2, text, sizeof text - 1) < 0)
        return;
    exit(0);
}
